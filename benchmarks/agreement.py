"""How far two models that should be the same write the same: one writes greedily, the other reads it token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import N_CTX, PROMPTS

from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement

NEAR_TIE = 0.1
"""Logits this close may change places by rounding."""
OUT_OF_REACH = 50.0
"""A token whose logit is this much below another's is never sampled: its chance is 2e-22 of the other's."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the result would have written instead of the source.

    missed: tokens that differ, by their number, with how much less the source thought of the result's (in logits).
    apart: the largest difference of a logit. below: how far the added tokens' logits stay under the best one.
    """

    tokens: int
    missed: dict[int, float]
    apart: float
    below: float

    @property
    def same(self) -> bool:
        """Whether rounding alone can be the reason for what differs."""
        return max(self.missed.values(), default=0.0) <= NEAR_TIE and self.below > OUT_OF_REACH

    def __str__(self) -> str:
        said = f"{self.tokens - len(self.missed)} of {self.tokens} tokens equal"
        if self.missed:
            worst = max(self.missed.values())
            said += f", the first difference at {min(self.missed)}; those that differ are {worst:.2g} apart at most"
        said += f"; logits differ by {self.apart:.2g} at most"
        return said + (f"; added tokens {self.below:.0f} below the best or more" if self.below < math.inf else "")


def compare(source: Path, result: Path, tokens: int, threads: int, prompts: Sequence[str] = PROMPTS) -> Comparison:
    """Let the source write so many tokens to each prompt, greedily, and the result read them one by one."""
    interrupt = Interrupt()
    models = [Model(path, Placement(), interrupt) for path in (source, result)]
    count, missed, apart, below = 0, {}, 0.0, math.inf
    for prompt in prompts:
        contexts = [LlamaContext(model, N_CTX, 1, threads, interrupt) for model in models]
        read = models[0].tokenize(prompt)
        for _ in range(tokens):
            wanted, found = (context.decode(read)[0] for context in contexts)
            token, other = int(wanted.argmax()), int(found.argmax())
            if other != token:
                missed[count] = float(wanted[token] - wanted[other]) if other < len(wanted) else math.inf
            apart = max(apart, float(abs(found[: len(wanted)] - wanted).max()))
            below = min(below, float(found.max() - found[len(wanted) :].max(initial=-math.inf)))
            count += 1
            if models[0].is_end(token):
                break
            read = [token]
        for context in contexts:
            context.close()
    for model in models:
        model.close()
    return Comparison(count, missed, apart, below)
