"""Replays any draft-length policy on a recording, under any machine's costs: no model, no noise, no waiting.

A recording says, for each place of an answer, how sure the draft model was and whether its token would have stood.
As long as all tokens of a draft stand, the draft model reads the very text of the target, so what it proposes at a
place does not depend on where the draft began. After a wrong token it reads another text, and there only its confidence
matters, for it decides how many more tokens are drafted in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.length_policy import LengthPolicy
from specdec_cli.decoding.types import NO_DRAFT, Drafter, Step, Token
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.draft_length.known_draft import KnownLength

AHEAD = LONGEST
"""How far ahead of each place a recording must know the draft."""
STATIC_MIN_P = (0.0, 0.5, 0.75, 0.9)
REVIEWED = 24
"""Places that a draft model left behind compares itself with when it reads on."""
_MOST = 256
"""The -n of replays."""

_FREE = Costs(Curve({1: 0.0}), Curve({1: 0.0}))

Static = tuple[int, float]
"""A setting that does not adapt: draft tokens (0: the target alone) and the least confidence to go on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the target from its second token on, place by place, as the draft model saw it.

    confidence[i]: the draft's highest probability for place i, given the true text before. stands[i]: whether the
    token that it proposed is accepted. astray[i]: its confidences at the places after a wrong token; empty where it
    stands.
    """

    category: str
    prompt_tokens: int
    confidence: tuple[float, ...]
    stands: tuple[bool, ...]
    astray: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a prompt and of the target's answer, for drafters that need no model and can be run again."""

    category: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Tally:
    """What a replay came to, in passes, so that any machine's costs can be put on it.

    verified[n]: passes of the target over n tokens. read[n]: passes of the draft model over n tokens.
    """

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    verified: Counter[int] = field(default_factory=Counter)
    read: Counter[int] = field(default_factory=Counter)

    def seconds(self, costs: Costs) -> float:
        """The time it takes on a machine with these costs."""
        verify = sum(count * (costs.verify(n) + costs.other) for n, count in self.verified.items())
        return verify + sum(count * costs.draft(n) for n, count in self.read.items())

    def tokens_per_s(self, costs: Costs) -> float:
        return self.tokens / self.seconds(costs) if self.tokens else 0.0


class _Run:
    """The steps of one answer, timed by what passes cost."""

    def __init__(self, policy: LengthPolicy, costs: Costs, tally: Tally, watch: Callable[[Step], None] | None) -> None:
        self._policy, self._costs, self._tally, self._watch = policy, costs, tally, watch
        self._index, self._now = 0, 0.0

    def step(
        self,
        drafted: tuple[int, ...],
        accepted: int,
        draft_s: float,
        apart_s: float = 0.0,
        tokens: tuple[Token, ...] = (),
        source: str = "",
    ) -> Step:
        """Count a step and show it. apart_s: for reading the prompt, which is not a part of the step."""
        costs, tally = self._costs, self._tally
        verify_s = costs.verify(len(drafted) + 1)
        self._index += 1
        self._now += apart_s + draft_s + verify_s + costs.other
        step = Step(
            self._index, tokens, drafted, accepted, (), source, draft_s, verify_s, 0.0, self._now, self._policy.why
        )
        self._policy.observe(step)
        if self._watch:
            self._watch(step)
        tally.drafted += len(drafted)
        tally.accepted += accepted
        tally.verified[len(drafted) + 1] += 1
        return step


def replay(
    policy: LengthPolicy, answers: Iterable[Answer], costs: Costs, watch: Callable[[Step], None] | None = None
) -> Tally:
    """Decode the answers again with a policy that is told these costs; `watch` sees every step."""
    tally = Tally()
    for answer in answers:
        _replay(policy, answer, costs, tally, _Run(policy, costs, tally, watch))
    return tally


def _replay(policy: LengthPolicy, answer: Answer, costs: Costs, tally: Tally, run: _Run) -> None:
    length = len(answer.stands)
    policy.begin(answer.prompt_tokens)
    apart = answer.prompt_tokens - 1  # the prompt is read before the draft's clock
    behind, at, missed = answer.prompt_tokens + 1, 0, list[int]()
    while at < length:
        drafted = accepted = 0
        draft_s = apart_s = 0.0
        # The policy knows how much more the answer may hold, not where it will end.
        if budget := min(policy.limit(max(_MOST, length) - at - 1), length - at - 1, AHEAD):
            for place in missed[-REVIEWED:] if behind > 2 else ():
                policy.observe_counterfactual(answer.confidence[place], float(answer.stands[place]))
            drafted, accepted, passes = _draft(policy, answer, at, budget)
            draft_s = costs.draft(behind - apart) + (passes - 1) * costs.draft(1)
            apart_s = costs.draft(behind) - costs.draft(behind - apart)
            tally.read[behind] += 1
            tally.read[1] += passes - 1
            behind, apart = 1 + (drafted == accepted > 0), 0
            missed.clear()
        else:
            behind += 1
            missed.append(at)
        run.step((0,) * drafted, accepted, draft_s, apart_s)
        at += accepted + 1
    tally.tokens += length


def _draft(policy: LengthPolicy, answer: Answer, at: int, budget: int) -> tuple[int, int, int]:
    """One draft from place `at` on: tokens drafted, tokens that stand, passes of the draft model."""
    drafted = accepted = passes = 0
    wrong: int | None = None
    while True:
        passes += 1
        if wrong is None:
            confidence = answer.confidence[at + drafted]
        elif drafted - accepted - 1 < len(answer.astray[wrong]):
            confidence = answer.astray[wrong][drafted - accepted - 1]
        else:
            break
        if not policy.should_draft(drafted, confidence):
            break
        if wrong is None:
            accepted += answer.stands[at + drafted]
            wrong = None if answer.stands[at + drafted] else at + drafted
        drafted += 1
        if drafted == budget or not policy.should_read(drafted):
            break
    return drafted, accepted, passes


def replay_texts(
    make: Callable[[], Drafter],
    policy: LengthPolicy,
    texts: Iterable[Text],
    costs: Costs,
    watch: Callable[[Step], None] | None = None,
) -> Tally:
    """Decode texts again with a drafter that needs no model: the real one, made anew for each, as for each answer.

    A draft token stands if it is the text's. That is what `match` and `coupled` do, and as a deterministic draft
    token stands with probability p, it is as often true with `rejection`.
    """
    tally = Tally()
    for text in texts:
        _replay_text(make(), policy, text, costs, tally, _Run(policy, costs, tally, watch))
    return tally


def _replay_text(drafter: Drafter, policy: LengthPolicy, text: Text, costs: Costs, tally: Tally, run: _Run) -> None:
    tokens = text.tokens
    context = [*text.prompt, tokens[0]]
    policy.begin(len(text.prompt))
    drafter.start(text.prompt)
    at = 1
    while at < len(tokens):
        left = len(tokens) - at - 1  # besides the token that a step brings in any case
        budget = min(policy.limit(max(_MOST, len(tokens)) - at - 1), left, AHEAD)
        draft = drafter.propose(context, budget, policy) if budget > 0 else NO_DRAFT
        truth = zip(draft.tokens, tokens[at:], strict=False)
        accepted = next((i for i, (guess, token) in enumerate(truth) if guess != token), len(draft.tokens))
        new = tuple(Token(token, "", "plain") for token in tokens[at : at + accepted + 1])
        context += [token.id for token in new]
        at += len(new)
        draft_s = costs.draft(1) if budget > 0 else 0.0
        drafter.observe(run.step(draft.tokens, accepted, draft_s, 0.0, new, draft.source))
        tally.read[1] += budget > 0
    tally.tokens += len(tokens) - 1


def alone(answers: Iterable[Answer] | Iterable[Text]) -> Tally:
    """The target without a draft."""
    tokens = sum(len(found.stands) if isinstance(found, Answer) else len(found.tokens) - 1 for found in answers)
    return Tally(tokens=tokens, verified=Counter({1: tokens}))


def adaptive(
    answers: Sequence[Answer], costs: Costs, greedy: bool, watch: Callable[[Step], None] | None = None
) -> Tally:
    """`-k auto`, knowing the costs and nothing else, through all answers one after the other."""
    return replay(
        AutoLength(CostModel(replace(costs, other=0.0), LONGEST), Calibration.prior(greedy)), answers, costs, watch
    )


def known(
    make: Callable[[], Drafter], texts: Iterable[Text], costs: Costs, watch: Callable[[Step], None] | None = None
) -> Tally:
    """The same for a drafter without a model."""
    return replay_texts(make, KnownLength(CostModel(replace(costs, other=0.0), LONGEST)), texts, costs, watch)


def statics(answers: Sequence[Answer], thresholds: Sequence[float] = STATIC_MIN_P) -> dict[Static, Tally]:
    """Every static setting, the target alone included; what they do does not depend on costs."""
    settings = {(k, min_p): FixedLength(k, min_p) for k in range(1, LONGEST + 1) for min_p in thresholds}
    return {(0, 0.0): alone(answers)} | {key: replay(policy, answers, _FREE) for key, policy in settings.items()}


def known_statics(
    make: Callable[[], Drafter], texts: Sequence[Text], thresholds: Sequence[float] = STATIC_MIN_P
) -> dict[Static, Tally]:
    """The same for a drafter without a model."""
    settings = {(k, min_p): FixedLength(k, min_p) for k in range(1, LONGEST + 1) for min_p in thresholds}
    return {(0, 0.0): alone(texts)} | {
        key: replay_texts(make, policy, texts, _FREE) for key, policy in settings.items()
    }


def best(tallies: Mapping[Static, Tally], costs: Costs, fixed: bool = False) -> tuple[Static, float]:
    """The fastest static setting on a machine and its tokens per second. fixed: of those without a threshold."""
    chosen = [setting for setting in tallies if not fixed or setting[1] == 0.0]
    speeds = {setting: tallies[setting].tokens_per_s(costs) for setting in chosen}
    setting = max(chosen, key=lambda setting: speeds[setting])
    return setting, speeds[setting]


def clairvoyant(answers: Iterable[Answer], costs: Costs) -> float:
    """Tokens per second of whoever knows which tokens will be accepted and drafts what pays of them: the bound."""
    seconds, tokens = 0.0, 0
    step = [costs.verify(n) + costs.other for n in range(1, LONGEST + 2)]
    draft = costs.draft(1)
    for answer in answers:
        length = len(answer.stands)
        left = [0.0] * (length + 1)  # left[i]: the least time from place i to the end
        for at in range(length - 1, -1, -1):
            left[at] = step[0] + left[at + 1]
            drafted = 0
            while drafted < LONGEST and at + drafted + 1 < length and answer.stands[at + drafted]:
                drafted += 1
                left[at] = min(left[at], drafted * draft + step[drafted] + left[at + drafted + 1])
        seconds += left[0]
        tokens += length
    return tokens / seconds if tokens else 0.0
