"""The best draft length that does not adapt, from a recording: what engines without `-k auto` are to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.decoding.costs import Costs
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.simulate import FREE, Answer, Tally

LEAST_CONFIDENCE = (0.0, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """How an engine drafts. confidences: the least ones that it may be told, below which a draft ends. rereads: whether
    its draft model reads once more what the target verifies, as llama.cpp's does. rule: the acceptance rule of ours
    that is its own.
    """

    confidences: tuple[float, ...]
    rereads: bool
    rule: str


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """tokens: of a draft at most, 0 where no draft pays. min_p: a draft ends below this confidence. Speeds are in
    tokens per second, what a draft model reads of prompts not counted. auto_speedup: of `-k auto`, where it is.
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
    """The fastest of all lengths with any least confidence that the engine takes."""
    alone = 1 / costs.verify(1)  # no draft model is loaded then
    found = (0, 0.0, alone)
    for least in policy.confidences:
        for tokens in range(1, LONGEST + 1):
            tally = simulation.replay(FixedLength(tokens, least), answers, FREE)
            speed = tally.tokens / seconds_of(tally, costs, policy)
            if speed > found[2]:
                found = tokens, least, speed
    auto = simulation.adaptive(answers, costs, greedy).tokens_per_s(costs) / simulation.alone(answers).tokens_per_s(
        costs
    )
    return StaticSetting(*found, alone_tokens_per_s=alone, auto_speedup=auto)


def seconds_of(tally: Tally, costs: Costs, policy: StaticPolicy) -> float:
    """What such an engine takes for it, prompts not counted."""
    # Where every batch of the target's goes through the draft model first, each of its own passes is over one token.
    again = sum(times * costs.draft(n) for n, times in tally.verified.items()) if policy.rereads else 0.0
    drafting = sum(times * costs.draft(n if n == 2 and not policy.rereads else 1) for n, times in tally.read.items())
    verified = sum(times * costs.verify(n) for n, times in tally.verified.items())
    return verified + again + drafting
