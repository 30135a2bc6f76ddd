"""Where an answer differs from the target's own, and whether rounding explains it: the position is computed again.

Kernels for different numbers of tokens sum in different orders, so a row of logits depends on the pass that computed
it. No fixed margin tells this from a bug, but computing the position again does, once in the passes of the target alone
and once in those of the other answer. If each prefers its own answer's token, the kernels round differently; if not,
there is a bug. A bug that repeats itself, such as a cache that keeps a rejected token, shows when the rejected tokens
are replaced by others: no row may depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from specdec_cli.decoding.noise import SharedNoise
from specdec_cli.decoding.sampling import Row, StandardSampler
from specdec_cli.decoding.types import Draft, Event, Rows, Step, Target, Verdict
from specdec_cli.decoding.wording import counted

Unit = Literal["logits", "probability"]


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass of the target, or its prefill: what it verified, what was accepted, which tokens it added."""

    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, step: Step) -> Pass:
        draft = Draft(step.drafted, parents=step.parents)
        return cls(draft, tuple(step.accepted_path), tuple(token.id for token in step.tokens))


@dataclass(frozen=True, slots=True)
class Transcript:
    """How an answer was computed. threads: CPU threads, as logged by the target's context; empty if it logs none."""

    passes: tuple[Pass, ...]
    threads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event], threads: Sequence[tuple[int, int]] = ()) -> Transcript:
        return cls(tuple(Pass.of(event) for event in events if isinstance(event, Step)), tuple(threads))

    @property
    def tokens(self) -> list[int]:
        return [token for each in self.passes for token in each.tokens]

    def with_other_rejected(self, position: int) -> Transcript:
        """The same passes, with the tokens that were rejected before `position` replaced by others."""
        passes, first = list[Pass](), 0
        for each in self.passes:
            tokens = list(each.draft.tokens)
            for node in set(range(len(tokens))).difference(each.path[: max(position - first, 0)]):
                tokens[node] = tokens[node] - 1 if tokens[node] else 1
            passes.append(replace(each, draft=replace(each.draft, tokens=tuple(tokens))))
            first += len(each.tokens)
        return replace(self, passes=tuple(passes))


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which an answer differs from the target's own.

    width: tokens in the pass that chose it. own_margin: by how much the target's own passes prefer its token to the
    other; margin: by how much the answer's passes prefer theirs; None if unknown. unit: of both margins: logits (with
    the noise of `coupled`), or the probability by which a draw of `match` missed the other token. bug: what is wrong;
    empty if rounding is proved.
    """

    position: int
    width: int
    own_margin: float | None
    margin: float | None
    unit: Unit
    bug: str = ""

    @property
    def kind(self) -> Literal["rounding", "wrong"]:
        return "wrong" if self.bug else "rounding"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind}

    def __str__(self) -> str:
        alone, answer = ("outright" if by is None else f"by {by:.3g}" for by in (self.own_margin, self.margin))
        return self.bug or (
            f"proved to be rounding: computed again, the target alone prefers its token {alone}; "
            f"{_with(self.width)}, it prefers the other {answer} ({self.unit})"
        )


def _with(width: int) -> str:
    """How a token was chosen. The passes themselves may have another width: --bitwise pads and splits them."""
    return f"with {counted(width - 1, 'draft token')} to verify" if width > 1 else "with the answer's own passes"


class Choice:
    """Which token a reproducible rule picks from the target's row at one position, and by what margin.

    sampler: must already follow the text before it. position: in the answer. length: the text's. seed: the run's.
    """

    def __init__(self, sampler: StandardSampler, position: int, length: int, seed: int) -> None:
        self.unit: Unit = "logits" if sampler.greedy or sampler.coupled else "probability"
        self._sampler, self._length = sampler, length
        self._noise = SharedNoise(seed) if sampler.coupled else None
        self._uniform = float(np.random.default_rng(seed).random(position + 1)[position])
        """The number that `match` draws this token with; it uses one per token."""

    def token(self, row: Row) -> int:
        if self._sampler.greedy:
            return self._sampler.argmax(row)
        p = self._sampler.categorical(row)
        return self._noise.draw(p, self._length) if self._noise else p.at(self._uniform)

    def margin(self, row: Row, other: int) -> float | None:
        """By how much `token(row)` is preferred to another; None if the other was cut."""
        best = self.token(row)
        if self._sampler.greedy:
            row = self._sampler.prepared(row)
            return float(row[best]) - float(row[other])
        p = self._sampler.categorical(row)
        if p.prob(other) <= 0:
            return None
        ids = np.arange(p.probs.size) if p.ids is None else p.ids
        if self._noise is None:
            # The distance from the number to the interval that draws the other token.
            high = float(p.probs.cumsum(dtype=np.float64)[ids == other][0])
            return max(high - p.prob(other) - self._uniform, self._uniform - high, 0.0)
        waiting = self._noise.waiting(p, self._length)
        return math.log(waiting[ids == other][0] / waiting[ids == best][0])


def first_difference(alone: Sequence[int], answer: Sequence[int]) -> int | None:
    """The first position at which two answers differ, a missing token included; None if they are equal."""
    differing = (i for i, (a, b) in enumerate(zip(alone, answer, strict=False)) if a != b)
    return next(differing, None if len(alone) == len(answer) else min(len(alone), len(answer)))


def explain(
    prompt: Sequence[int],
    alone: Transcript,
    answer: Transcript,
    position: int,
    choice: Choice,
    target_of: Callable[[Transcript], Target],
    experts: bool = False,
) -> Divergence:
    """Compute again, in the passes of both, the position where `answer` differs from `alone`, the target's own answer,
    and explain the difference.

    target_of: returns a target with an empty cache that computes as it did for a transcript. experts: whether it is a
    mixture of experts, where the tokens of a pass share kernels, so other rejected tokens may change the rounding.
    """
    width = len(_decisive(answer, position)[0].draft.tokens) + 1
    wrong = partial(Divergence, position, width, None, None, choice.unit)
    if position == min(len(alone.tokens), len(answer.tokens)):
        ended = "the answer" if position < len(alone.tokens) else "the target's own answer"
        return wrong(f"{ended} ended before the other")
    alone_token, answer_token = alone.tokens[position], answer.tokens[position]
    margins: list[float | None] = []
    for transcript, token, other, what in (
        (alone, alone_token, answer_token, "the target alone"),
        (answer, answer_token, alone_token, f"the target {_with(width)}"),
    ):
        row = recomputed(target_of(transcript), prompt, transcript, position)
        if isinstance(row, str):
            return wrong(row)
        if (preferred := choice.token(row)) != token:
            return wrong(f"computed again, {what} prefers token {preferred}, but {token} was generated")
        margins.append(choice.margin(row, other))
    again = recomputed(target_of(answer), prompt, answer.with_other_rejected(position), position)
    if isinstance(again, str) or not (np.array_equal(row, again) or (experts and choice.token(again) == answer_token)):
        return wrong("the row of logits that chose the token depends on rejected tokens")
    return Divergence(position, width, margins[0], margins[1], choice.unit)


def recomputed(target: Target, prompt: Sequence[int], transcript: Transcript, position: int) -> Row | str:
    """The row (n_vocab,) that chose a token, computed again in the answer's passes; or what is wrong."""
    decisive, first = _decisive(transcript, position)
    rows: Rows = target.prefill(prompt)
    length = len(prompt)
    for each, following in pairwise(transcript.passes):
        if each is decisive:
            break
        target.commit(Verdict(each.path, each.tokens[-1], "plain"), each.tokens[len(each.path) : -1])
        length += len(each.tokens)
        if target.length != length - 1:  # all but the pending token
            return f"the cache holds {target.length} tokens, but should hold {length - 1}"
        rows = target.verify(each.tokens[-1], following.draft)
        rows[following.path[-1] + 1 if following.path else 0]  # lazy rows: compute as many as the answer did
    depth = position - first
    return np.array(rows[decisive.path[depth - 1] + 1 if depth else 0], np.float32)


def _decisive(transcript: Transcript, position: int) -> tuple[Pass, int]:
    """The pass that a token came from (the last if none did), and the position of the pass's first token."""
    first = 0
    for each in transcript.passes[:-1]:
        if position < first + len(each.tokens):
            return each, first
        first += len(each.tokens)
    return transcript.passes[-1], first
