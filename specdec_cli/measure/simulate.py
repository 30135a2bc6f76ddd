"""Replays any draft-length policy on a recording, under any machine's costs, and predicts what drafting brings there:
with `-k auto`, and in other engines with the best length that does not adapt.

A recording holds, for each token of an answer, how sure the draft model was and whether its token is accepted. As long
as all tokens of a draft are accepted, the draft model reads the target's own text, so its proposal for a position
doesn't depend on where the draft began. After a wrong token it reads another text, where only its confidence matters:
it decides how many more tokens are drafted for nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from specdec_cli.decoding.costs import SETTLED, Costs, Curve
from specdec_cli.decoding.types import CATCH_UP_ROWS, LengthPolicy, Step, Token
from specdec_cli.draft_length import DraftForm
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.fixed import FixedLength

AHEAD = LONGEST
"""How many draft tokens after each position a recording must hold."""
MAX = 256
"""The -n of replays."""

FREE = Costs(Curve({1: 0.0}), Curve({1: 0.0}))
"""Costs for replays that only count passes."""
WORTH_IT = 1.02
"""A smaller predicted speedup counts as none, because predictions are no more precise."""
_REMEDY = 1.05
"""A change is mentioned if it makes drafting at least this many times as fast as `auto`."""
MIN_CONFIDENCE = (0.0, 0.5, 0.75, 0.9)
"""The minimum confidences to try for engines that have one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the target from its second token on, position by position, as the draft model saw it.

    confidence[i]: the draft's highest probability at position i, given the true text before. accepted[i]: whether the
    token that it proposed is accepted. after_rejection[i]: its confidences at the positions after a rejected token;
    empty if the token is accepted.
    """

    category: str
    prompt_tokens: int
    confidence: tuple[float, ...]
    accepted: tuple[bool, ...]
    after_rejection: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a prompt and of the target's answer, for drafters without a model, which can run again."""

    category: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


_Entry = TypeVar("_Entry", Answer, Text)


@dataclass(slots=True)
class Tally:
    """A replay in passes, to which any machine's costs can be applied.

    verified[n]: passes of the target over n tokens; repeated[n]: those of them that follow two of the same size.
    read[n]: passes of the draft model over n tokens.
    """

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    verified: Counter[int] = field(default_factory=Counter)
    repeated: Counter[int] = field(default_factory=Counter)
    read: Counter[int] = field(default_factory=Counter)

    def seconds(self, costs: Costs) -> float:
        drafting = sum(count * costs.draft(n) for n, count in self.read.items())
        return self.verify_s(costs) + self.verified.total() * costs.other + drafting

    def verify_s(self, costs: Costs) -> float:
        """Seconds of the target's passes."""
        saved = sum(count * (costs.verify(n) - costs.verify_after(n, SETTLED)) for n, count in self.repeated.items())
        return sum(count * costs.verify(n) for n, count in self.verified.items()) - saved

    def tokens_per_s(self, costs: Costs) -> float:
        return self.tokens / self.seconds(costs) if self.tokens else 0.0


@dataclass(slots=True)
class Run:
    """One answer that is decoded again. It times its steps by the costs of passes, counts them and calls `on_step`."""

    policy: LengthPolicy
    costs: Costs
    tally: Tally
    on_step: Callable[[Step], None] | None = None
    index: int = 0
    now: float = 0.0
    rows: int = 0
    alike: int = 0
    """Tokens of the latest pass of the target, and how many passes in a row had that many."""

    def step(
        self,
        drafted: tuple[int, ...],
        accepted: int,
        draft_s: float,
        apart_s: float = 0.0,
        tokens: tuple[Token, ...] = (),
        source: str = "",
    ) -> Step:
        """Count a step and show it. apart_s: seconds for reading the prompt, which isn't part of the step."""
        rows = len(drafted) + 1
        self.alike = self.alike + 1 if rows == self.rows else 1
        self.rows = rows
        verify_s = self.costs.verify_after(rows, self.alike)
        self.index += 1
        self.now += apart_s + draft_s + verify_s + self.costs.other
        why = self.policy.why
        step = Step(self.index, tokens, drafted, accepted, (), source, draft_s, verify_s, 0.0, self.now, why)
        self.policy.observe(step)
        if self.on_step:
            self.on_step(step)
        self.tally.drafted += len(drafted)
        self.tally.accepted += accepted
        self.tally.verified[rows] += 1
        self.tally.repeated[rows] += self.alike >= SETTLED
        return step


def replay(
    policy: LengthPolicy, answers: Iterable[Answer], costs: Costs, on_step: Callable[[Step], None] | None = None
) -> Tally:
    """Decode the answers again with a policy that knows these costs; `on_step` sees every step."""
    tally = Tally()
    for answer in answers:
        _replay(answer, Run(policy, costs, tally, on_step))
    return tally


def _replay(answer: Answer, run: Run) -> None:
    policy, draft_cost, read, length = run.policy, run.costs.draft, run.tally.read, len(answer.accepted)
    policy.begin(answer.prompt_tokens)
    apart = answer.prompt_tokens - 1  # the prompt is read before the draft's clock
    behind, at, missed = answer.prompt_tokens + 1, 0, list[int]()
    while at < length:
        drafted = accepted = 0
        draft_s = apart_s = 0.0
        # The policy knows how much more the answer may hold, not where it will end.
        if budget := min(policy.limit(max(MAX, length) - at - 1), length - at - 1, AHEAD):
            for place in missed[-CATCH_UP_ROWS:] if behind > 2 else ():
                policy.observe_counterfactual(answer.confidence[place], float(answer.accepted[place]))
            drafted, accepted, passes = _draft(policy, answer, at, budget)
            draft_s = draft_cost(behind - apart) + (passes - 1) * draft_cost(1)
            apart_s = draft_cost(behind) - draft_cost(behind - apart)
            read[behind] += 1
            read[1] += passes - 1
            behind, apart = 1 + (drafted == accepted > 0), 0
            missed.clear()
        else:
            behind += 1
            missed.append(at)
        run.step((0,) * drafted, accepted, draft_s, apart_s)
        at += accepted + 1
    run.tally.tokens += length


def _draft(policy: LengthPolicy, answer: Answer, at: int, budget: int) -> tuple[int, int, int]:
    """One draft from place `at` on: tokens drafted, tokens that stand, passes of the draft model."""
    drafted = accepted = passes = 0
    wrong: int | None = None
    while True:
        passes += 1
        if wrong is None:
            confidence = answer.confidence[at + drafted]
        elif drafted - accepted - 1 < len(answer.after_rejection[wrong]):
            confidence = answer.after_rejection[wrong][drafted - accepted - 1]
        else:
            break
        if not policy.should_draft(drafted, confidence):
            break
        if wrong is None:
            accepted += answer.accepted[at + drafted]
            wrong = None if answer.accepted[at + drafted] else at + drafted
        drafted += 1
        if drafted == budget or not policy.should_read(drafted):
            break
    return drafted, accepted, passes


def alone(answers: Iterable[Answer]) -> Tally:
    """The target without a draft."""
    tokens = n_recorded(answers)
    return Tally(tokens=tokens, verified=Counter({1: tokens}))


def n_recorded(answers: Iterable[Answer]) -> int:
    """How many tokens are recorded."""
    return sum(len(answer.accepted) for answer in answers)


def adaptive(
    answers: Iterable[Answer], costs: Costs, greedy: bool, on_step: Callable[[Step], None] | None = None
) -> Tally:
    """`-k auto` through all answers in turn, knowing only the costs; `on_step` sees every step."""
    budget = DraftForm.GROWN.budget(plans=costs.repeated is not None)
    policy = AutoLength(CostModel(replace(costs, other=0.0), LONGEST), Calibration.prior(greedy), budget=budget)
    return replay(policy, answers, costs, on_step)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One category. Speedups are tokens per second over the target alone's; best_k: the best fixed length."""

    category: str
    tokens: int
    acceptance: float
    """The share of positions where the draft's first token is accepted."""
    tokens_per_step: float
    alone_tokens_per_s: float
    auto: float
    best_k: int
    fixed: float


def by_category(entries: Iterable[_Entry]) -> Mapping[str, list[_Entry]]:
    """Answers or texts by category, in order of appearance."""
    categories = defaultdict[str, list[_Entry]](list)
    for entry in entries:
        categories[entry.category].append(entry)
    return categories


def predict(answers: Sequence[Answer], costs: Costs, greedy: bool) -> list[Prediction]:
    """Each category, then all answers in the order in which they were recorded."""
    each = [_predict(category, own, costs, greedy) for category, own in by_category(answers).items()]
    return [*each, _predict("all", answers, costs, greedy)] if len(each) != 1 else each


def _predict(category: str, answers: Sequence[Answer], costs: Costs, greedy: bool) -> Prediction:
    replays = {0: alone(answers), **{k: replay(FixedLength(k), answers, FREE) for k in range(1, LONGEST + 1)}}
    speeds = {k: tally.tokens_per_s(costs) for k, tally in replays.items()}
    best_k = max(speeds, key=lambda k: speeds[k])
    auto = adaptive(answers, costs, greedy)
    accepted = [each for answer in answers for each in answer.accepted]
    return Prediction(
        category=category,
        tokens=len(accepted),
        acceptance=sum(accepted) / len(accepted),
        tokens_per_step=auto.tokens / auto.verified.total(),
        alone_tokens_per_s=speeds[0],
        auto=auto.tokens_per_s(costs) / speeds[0],
        best_k=best_k,
        fixed=speeds[best_k] / speeds[0],
    )


def calibrate(answers: Sequence[Answer], greedy: bool) -> Calibration:
    """The calibration that `auto` can start with: what the recording shows about the pair's confidence."""
    calibration = Calibration.prior(greedy)
    for answer in answers:
        for confidence, accepted in zip(answer.confidence, answer.accepted, strict=True):
            at = bin_of(confidence)
            calibration.observe_confidence(at)
            calibration.learn(at, float(accepted))
    return calibration


def verdict(
    predictions: Sequence[Prediction], answers: Sequence[Answer], costs: Costs, greedy: bool, where: str
) -> list[str]:
    """In plain words: whether the pair pays there, for what, and what would change that."""
    overall = predictions[-1]
    parts = predictions[:-1] or predictions
    gains = [each for each in parts if each.auto >= WORTH_IT]
    names = ", ".join(f"{each.category} ({each.auto:.2f}x)" for each in gains)
    pays = f"This pair pays on {where} for {names}; elsewhere auto will not use the draft model."
    if not gains:
        pays = f"This pair does not pay on {where}: auto will mostly not use the draft model."
    elif len(gains) == len(parts):
        pays = f"This pair pays on {where}: {overall.auto:.2f}x expected with -k auto."
    one = costs.verify(1)
    prices = (
        f"A draft token costs {costs.draft(1) / one:.0%} of a target token. Verifying 2 tokens takes "
        f"{costs.verify(2) / one:.2f} times as long as generating one, and 4 take {costs.verify(4) / one:.2f} times. "
        f"{overall.acceptance:.0%} of first draft tokens are accepted."
    )
    return [pays, prices, *_remedies(overall, answers, costs, greedy)]


def _remedies(overall: Prediction, answers: Sequence[Answer], costs: Costs, greedy: bool) -> list[str]:
    """The changes that would make a difference, computed one at a time."""
    flat = replace(costs, verify=Curve({1: costs.verify(1)}), repeated=None)
    gpu = "a machine on which verifying several tokens takes no longer than one (nearly so for large models on GPUs)"
    helpful = []
    for what, texts, prices in (
        ("a draft model of this quality at half the cost", answers, half_priced(costs)),
        ("a draft model that is wrong half as often", [_improved(answer) for answer in answers], costs),
        (gpu, answers, flat),
    ):
        speedup = adaptive(texts, prices, greedy).tokens_per_s(prices) / overall.alone_tokens_per_s
        if speedup > max(overall.auto, 1.0) * _REMEDY:
            helpful.append(f"{what}: {speedup:.2f}x")
    return ["What would change that: " + "; ".join(helpful) + "."] if helpful else []


def half_priced(costs: Costs) -> Costs:
    """The same with a draft model at half the cost."""
    return replace(costs, draft=Curve({n: seconds / 2 for n, seconds in costs.draft.points.items()}))


def _improved(answer: Answer) -> Answer:
    """The answer with every other wrong token made right."""
    accepted = list(answer.accepted)
    rejected = [i for i, right in enumerate(accepted) if not right]
    for i in rejected[::2]:
        accepted[i] = True
    return replace(answer, accepted=tuple(accepted))


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """How an engine without `-k auto` drafts. confidences: the minimum confidences that it can use, below which a draft
    ends. rereads: whether its draft model reads verified tokens again, as llama.cpp's does. rule: the name of its
    acceptance rule in specdec.
    """

    confidences: tuple[float, ...]
    rereads: bool
    rule: str

    def seconds(self, tally: Tally, costs: Costs) -> float:
        """The engine's seconds for these passes, without prompts."""
        # Where every batch of the target's goes through the draft model first, its own passes are over one token each.
        again = sum(times * costs.draft(n) for n, times in tally.verified.items()) if self.rereads else 0.0
        drafting = sum(times * costs.draft(n if n == 2 and not self.rereads else 1) for n, times in tally.read.items())
        return tally.verify_s(costs) + again + drafting


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """tokens: the draft length, 0 if drafting doesn't pay. min_p: a draft ends below this confidence. Speeds are in
    tokens per second, without reading prompts. auto_speedup: that of `-k auto`.
    """

    tokens: int
    min_p: float
    tokens_per_s: float
    alone_tokens_per_s: float
    auto_speedup: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.alone_tokens_per_s


def best_static(answers: Sequence[Answer], costs: Costs, greedy: bool, policy: StaticPolicy) -> StaticSetting:
    """The fastest of all lengths and minimum confidences that the engine can use."""
    target_alone = 1 / costs.verify(1)  # without a draft model
    tokens, min_p, speed = 0, 0.0, target_alone
    for least in policy.confidences:
        for length in range(1, LONGEST + 1):
            tally = replay(FixedLength(length, least), answers, FREE)
            if (found := tally.tokens / policy.seconds(tally, costs)) > speed:
                tokens, min_p, speed = length, least, found
    seconds = list[float]()  # without prompts, as the engine's
    tally = adaptive(answers, costs, greedy, lambda step: seconds.append(step.draft_s + step.verify_s))
    return StaticSetting(tokens, min_p, speed, target_alone, tally.tokens / sum(seconds) / target_alone)
