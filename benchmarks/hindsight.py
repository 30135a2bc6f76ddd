"""Complements the simulator: static settings, drafters without a model, and the best possible result in hindsight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.types import NO_DRAFT, Drafter, LengthPolicy, LengthReason, Step, Token
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.draft_length.known_draft import LONGEST_KNOWN, KnownLength
from specdec_cli.measure.simulate import FREE, MAX, MIN_CONFIDENCE, Answer, Run, Tally, Text, alone, replay

Static = tuple[int, float]
"""A setting that doesn't adapt: draft tokens (0: the target alone) and the least confidence to continue a draft."""


def _settings() -> dict[Static, FixedLength]:
    return {(k, min_p): FixedLength(k, min_p) for k in range(1, LONGEST + 1) for min_p in MIN_CONFIDENCE}


def statics(answers: Sequence[Answer]) -> dict[Static, Tally]:
    """Every static setting, including the target alone; their drafts don't depend on costs."""
    return {(0, 0.0): alone(answers)} | {key: replay(policy, answers, FREE) for key, policy in _settings().items()}


def best(
    tallies: Mapping[Static, Tally], costs: Costs, least: Sequence[float] = MIN_CONFIDENCE
) -> tuple[Static, float]:
    """The fastest static setting on a machine and its tokens per second. least: the least confidences to consider."""
    setting = max((key for key in tallies if key[1] in least), key=lambda key: tallies[key].tokens_per_s(costs))
    return setting, tallies[setting].tokens_per_s(costs)


def replay_texts(
    make: Callable[[], Drafter],
    policy: LengthPolicy,
    texts: Iterable[Text],
    costs: Costs,
    on_step: Callable[[Step], None] | None = None,
) -> Tally:
    """Decode texts again with a real drafter that needs no model, created anew for each text, as for each answer.

    A draft token is accepted if it equals the text's. `match` and `coupled` do the same; `rejection` accepts as often,
    because it accepts a deterministic draft token with probability p.
    """
    tally = Tally()
    for text in texts:
        replay_text(make(), text, Run(policy, costs, tally, on_step), lambda: costs.draft(1))
    return tally


def replay_text(drafter: Drafter, text: Text, run: Run, draft_s: Callable[[], float]) -> None:
    """Decode one text again. draft_s: called after each draft that was asked for, for the seconds that it took."""
    tokens = text.tokens
    context = [*text.prompt, tokens[0]]
    run.policy.begin(len(text.prompt))
    drafter.start(text.prompt)
    at = 1
    while at < len(tokens):
        left = len(tokens) - at - 1  # besides the token that every step emits
        budget = min(run.policy.limit(max(MAX, len(tokens)) - at - 1), left)
        draft = drafter.propose(context, budget, run.policy) if budget > 0 else NO_DRAFT
        truth = zip(draft.tokens, tokens[at:], strict=False)
        accepted = next((i for i, (guess, token) in enumerate(truth) if guess != token), len(draft.tokens))
        new = tuple(Token(token, "", "plain") for token in tokens[at : at + accepted + 1])
        context += [token.id for token in new]
        at += len(new)
        drafter.observe(run.step(draft.tokens, accepted, draft_s() if budget > 0 else 0.0, 0.0, new, draft.source))
        run.tally.read[1] += budget > 0
    run.tally.tokens += len(tokens) - 1


def known(make: Callable[[], Drafter], texts: Iterable[Text], costs: Costs) -> Tally:
    """`-k auto` with a drafter that needs no model."""
    return replay_texts(make, KnownLength(CostModel(replace(costs, other=0.0), LONGEST_KNOWN)), texts, costs)


def known_statics(make: Callable[[], Drafter], texts: Sequence[Text]) -> dict[Static, Tally]:
    """Every static setting with such a drafter, including the target alone."""
    tokens = sum(len(text.tokens) - 1 for text in texts)
    replayed = {key: replay_texts(make, policy, texts, FREE) for key, policy in _settings().items()}
    return {(0, 0.0): Tally(tokens=tokens, verified=Counter({1: tokens})), **replayed}


def clairvoyant(answers: Iterable[Answer], costs: Costs) -> float:
    """Tokens per second with the best drafts possible if it were known which tokens are accepted: an upper bound."""
    seconds, tokens = 0.0, 0
    step = [costs.verify(n) + costs.other for n in range(1, LONGEST + 2)]
    draft = costs.draft(1)
    for answer in answers:
        length = len(answer.accepted)
        left = [0.0] * (length + 1)  # left[i]: the least time from position i to the end
        for at in range(length - 1, -1, -1):
            left[at] = step[0] + left[at + 1]
            drafted = 0
            while drafted < LONGEST and at + drafted + 1 < length and answer.accepted[at + drafted]:
                drafted += 1
                left[at] = min(left[at], drafted * draft + step[drafted] + left[at + drafted + 1])
        seconds += left[0]
        tokens += length
    return tokens / seconds if tokens else 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Where `-k auto` loses time against a drafter that is always right: shares of the time of `auto`.

    speed: over the target alone. best: the least time with a drafter that is always right. wrong: more time at best,
    because this draft model errs. wasted: drafts that went on after an error. trials: drafts to find out whether
    drafting pays. short: drafts that were not begun, or ended too early.
    """

    speed: float
    best: float
    wrong: float
    wasted: float
    trials: float
    short: float


def shares(answers: Sequence[Answer], costs: Costs, greedy: bool) -> Shares:
    """The shares of all answers in turn with a machine's costs."""
    lost = Counter[bool]()

    def on_step(step: Step) -> None:
        unused = len(step.drafted) - step.accepted
        rows = step.accepted + 1
        seconds = costs.verify(rows + unused) - costs.verify(rows) + unused * costs.draft(1)
        lost[step.why == LengthReason.TRIAL] += seconds if unused else 0.0  # type: ignore[assignment]

    costs = replace(costs, repeated=None)  # the clairvoyant doesn't know that repeated passes cost less
    policy = AutoLength(CostModel(replace(costs, other=0.0), LONGEST), Calibration.prior(greedy))
    tally = replay(policy, answers, costs, on_step)
    tokens = tally.tokens
    total, own = tally.seconds(costs), tokens / clairvoyant(answers, costs)
    best = tokens / clairvoyant([replace(each, accepted=(True,) * len(each.accepted)) for each in answers], costs)
    speed = alone(answers).seconds(costs) / total
    rest = total - own - lost[False] - lost[True]
    return Shares(speed, *(each / total for each in (best, own - best, lost[False], lost[True], rest)))
