"""From logits to a distribution: penalties, top-k, top-p, min-p, temperature, in llama.cpp's order.

One implementation makes both the target's p and the draft's q. The three cuts each keep a prefix of the
tokens ordered by probability (ties: the lower id first), so only the few candidates are ever sorted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.noise import SharedNoise
from specdec_cli.decoding.options import SamplingOptions

Row = NDArray[np.float32]
_CERTAIN = np.ones(1)
_FORBIDDEN = np.float32(-np.inf)
_FEW = 64
"""Up to so many tokens are cut with Python's numbers. A forward pass leaves neither numpy nor Python in the processor's
caches, and numpy's many small calls then take longer."""
_STRIDE = 16
"""`confidence` adds up every so many of the unlikely tokens of a large vocabulary."""


class StandardSampler:
    """The sampler behind `--temp` and the other sampling options. noise: what `coupled` draws with instead of a random
    generator. constraint: limits the tokens, before anything else.
    """

    def __init__(
        self, settings: SamplingOptions, noise: SharedNoise | None = None, constraint: Constraint | None = None
    ) -> None:
        self.settings = settings
        self.greedy = settings.temperature == 0
        self.coupled = noise is not None
        """Whether target and draft draw with the same noise."""
        self.constraint = constraint
        self._noise = noise
        self._context: Sequence[int] = ()
        self._log_min_p = np.float32(math.log(settings.min_p) if settings.min_p > 0 else -math.inf)

    @property
    def needs_history(self) -> bool:
        """Whether the distribution depends on the text before a row, not only on the row."""
        return self.settings.penalises or self.constraint is not None

    def follow(self, context: Sequence[int], prompt_tokens: int | None = None) -> None:
        """Use this (growing) sequence as the history for penalties and the constraint. prompt_tokens: how many of its
        tokens are the prompt, by default all.
        """
        self._context = context
        if self.constraint is not None:
            self.constraint.begin(context, len(context) if prompt_tokens is None else prompt_tokens)

    def allows(self, row: Row, ahead: Sequence[int] = ()) -> bool:
        """Whether the constraint allows any token of a row."""
        return self.constraint is None or bool(self.prepared(row, ahead).max() > _FORBIDDEN)

    def argmax(self, row: Row, ahead: Sequence[int] = ()) -> int:
        """The most likely token. `ahead`: draft tokens between the end of the history and this row."""
        row = self.prepared(row, ahead)
        token = int(row.argmax())
        require_numbers(row[token])
        return token

    def likeliest(self, row: Row, count: int, ahead: Sequence[int] = ()) -> tuple[list[int], list[float]]:
        """The `count` most likely tokens, the first the argmax, and their probabilities at temperature 1, uncut."""
        row = self.prepared(row, ahead)
        best = row.max()
        ids, values = _top_candidates(row, min(count, row.size))
        order = np.argsort(-values, kind="stable")[:count]
        probabilities = np.exp(values[order] - best) * confidence(row)
        return (order if ids is None else ids[order]).tolist(), probabilities.tolist()

    def categorical(self, row: Row, ahead: Sequence[int] = ()) -> Categorical:
        """The distribution after all cuts, at a temperature above 0. row: float32 (n_vocab,). Like llama.cpp: top-k,
        then top-p of the rest, then min-p, all at temperature 1; the temperature is then applied to the survivors.
        """
        s = self.settings
        row = self.prepared(row, ahead)
        # Each cut keeps the most likely tokens, so the cuts can run in any order as long as top-p's mass is a share of
        # what top-k leaves. min-p runs first: it is cheap and cuts most.
        best = row[row.argmax()]
        require_numbers(best)
        ids, values = None, row
        if s.min_p > 0:
            ids = (row >= best + self._log_min_p).nonzero()[0]
            if ids.size == 1:
                return Categorical(ids, _CERTAIN)
            values = row[ids]
            if ids.size <= _FEW:
                return self._cut_few(row, best, ids, values)
        if s.top_p < 1 or 0 < s.top_k < values.size:
            return self._cut_by_rank(row, best, ids, values)
        if ids is None:
            dense = row - best
            dense /= np.float32(s.temperature)
            np.exp(dense, out=dense)
            dense /= dense.sum()
            return Categorical(None, dense)
        weights = np.subtract(values, best, dtype=np.float64)
        if s.temperature != 1:
            weights /= s.temperature
        np.exp(weights, out=weights)
        weights /= np.add.reduce(weights)
        return Categorical(ids, weights)

    def draw(self, p: Categorical, offset: int, rng: np.random.Generator) -> int:
        """Draw a token from p. offset: how far its position is after the end of the history (negative: before it)."""
        if self._noise is None:
            return p.draw(rng)
        return self._noise.draw(p, len(self._context) + offset)

    def _cut_few(self, row: Row, best: np.float32, ids: NDArray[np.int64], values: Row) -> Categorical:
        """Apply top-k, top-p and the temperature to the few tokens that min-p left."""
        s, logits, peak = self.settings, values.tolist(), float(best)
        ranked = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)[: s.top_k or None]
        weights = [math.exp(logits[i] - peak) for i in ranked]
        if s.top_p < 1 and weights[-1] <= (1 - s.top_p) * sum(weights):  # see `_cut_by_rank`
            mass = sum(weights) if len(weights) == s.top_k else _mass(row, best, s.top_k)
            ranked = ranked[: bisect_left(list(accumulate(weights)), s.top_p * mass) + 1]
        ranked.sort()
        weights = [math.exp((logits[i] - peak) / s.temperature) for i in ranked]
        mass = sum(weights)
        probs = np.array([weight / mass for weight in weights])
        return Categorical(ids if len(ranked) == ids.size else ids[ranked], probs)

    def _cut_by_rank(self, row: Row, best: np.float32, ids: NDArray[np.int64] | None, values: Row) -> Categorical:
        """Apply top-k and top-p. ids and values: the tokens that min-p left, or None and the whole row."""
        s = self.settings
        top_k = s.top_k if s.top_k < row.size else 0
        mass = None
        if 0 < top_k < values.size:
            if ids is None:
                ids, values = _top_candidates(row, top_k)
            kept = _at_least(values, np.partition(values, -top_k)[-top_k], top_k)
            ids, values = kept if ids is None else ids[kept], values[kept]
        elif ids is None:
            ids, values, mass = _nucleus_candidates(row, best, s.top_p)
        weights = np.subtract(values, best, dtype=np.float64)
        np.exp(weights, out=weights)
        if s.top_p < 1:
            total = np.add.reduce(weights)
            # The total is at most the whole mass. If even the smallest weight is a larger share of it than top-p
            # leaves out, nothing is cut, and the mass isn't needed.
            if weights[weights.argmin()] <= (1 - s.top_p) * total:
                if mass is None:
                    mass = total if top_k == ids.size else _mass(row, best, top_k)
                falling = np.sort(weights)[::-1]
                keep = int(falling.cumsum().searchsorted(s.top_p * mass)) + 1
                if keep < falling.size:
                    kept = _at_least(weights, falling[keep - 1], keep)
                    ids, weights = ids[kept], weights[kept]
        if s.temperature != 1:
            weights **= 1 / s.temperature
        weights /= np.add.reduce(weights)
        return Categorical(ids, weights)

    def prepared(self, row: Row, ahead: Sequence[int] = ()) -> Row:
        """The row with forbidden tokens at -inf and recent tokens penalised, as llama.cpp does it; the same array if
        nothing changes.
        """
        if self.constraint is not None and (mask := self.constraint.mask(ahead)) is not None:
            row = np.where(mask[: row.size], row, _FORBIDDEN)
        s = self.settings
        if not s.penalises:
            return row
        recent = [*self._context[-s.repeat_last_n :], *ahead][-s.repeat_last_n :]
        ids, counts = np.unique(np.array(recent, dtype=np.int64), return_counts=True)
        known = ids < row.size  # a padded target may have emitted an id that the draft's rows lack
        ids, counts = ids[known], counts[known]
        row = row.copy()
        values = row[ids]
        values = np.where(values <= 0, values * s.repeat_penalty, values / s.repeat_penalty)
        row[ids] = values - counts * s.frequency_penalty - s.presence_penalty
        return row


def _mass(row: Row, best: np.float32, top_k: int) -> float:
    """The sum of exp(logit - best) over the k largest logits, or over all of them for k = 0."""
    if not top_k:
        return float(weights_of(row, best).sum(dtype=np.float64))
    near = row[(row >= best - 9).nonzero()[0]]  # mostly some hundred
    if near.size < top_k:
        near = _top_candidates(row, top_k)[1].copy()
    near.sort()
    peak = float(best)
    return sum(math.exp(logit - peak) for logit in near[-top_k:].tolist())


def _nucleus_candidates(row: Row, best: np.float32, top_p: float) -> tuple[NDArray[np.int64], Row, float]:
    """Ids and logits that include all that top-p can keep of a whole vocabulary, and the vocabulary's mass. The start
    of the tail is guessed from every 61st token and the guess is checked, so only tokens above it are sorted.
    """
    weights = weights_of(row, best)
    mass = float(weights.sum(dtype=np.float64))
    if row.size > 10_000:
        some = np.sort(row[::61])
        tail = np.exp(some - best).cumsum(dtype=np.float64) * 61
        guess = some[min(int(tail.searchsorted((1 - top_p) * mass * 0.9)), some.size - 1)]
        ids: NDArray[np.int64] = (row >= guess).nonzero()[0]
        if weights[ids].sum(dtype=np.float64) >= mass * top_p:
            return ids, row[ids], mass
    return np.arange(row.size), row, mass


def _top_candidates(row: Row, k: int) -> tuple[NDArray[np.int64] | None, Row]:
    """Ids (None: all) and logits that include the k largest. In a large vocabulary, the k-th largest maximum of
    interleaved groups is a lower bound for the k-th largest logit, and few logits reach it.
    """
    groups = 64
    if row.size < 128 * groups or k > row.size // groups:
        return None, row
    maxima = row[: row.size - row.size % groups].reshape(groups, -1).max(axis=0)
    ids = (row >= np.partition(maxima, -k)[-k]).nonzero()[0]
    return ids, row[ids]


def _at_least(values: NDArray[np.floating[Any]], edge: np.floating[Any], count: int) -> NDArray[np.int64]:
    """The positions of the `count` largest values, ascending. edge: the smallest of them; its first ties are kept."""
    kept = (values >= edge).nonzero()[0]
    if kept.size > count:
        keep = np.ones(kept.size, dtype=bool)
        keep[(values[kept] == edge).nonzero()[0][count - kept.size :]] = False
        kept = kept[keep]
    return kept


def require_numbers(best: np.float32) -> None:
    """Raise SpecdecError if the largest logit isn't a number: a damaged file or a miscompiled kernel gives NaN, for
    which argmax returns the first, and an answer would be nonsense.
    """
    if not best < np.inf:
        raise SpecdecError("the model's logits are not numbers", "The file may be damaged: download it again.")


def confidence(row: Row) -> float:
    """The probability of the most likely token at temperature 1, before any cut.

    In a vocabulary of 100,000 tokens, those e^10 times less likely than the best are sampled: every 16th stands for 16.
    On rows of Qwen2.5-Coder 0.5B, that is within 0.5 % and takes half as long.
    """
    best = row[row.argmax()]
    if row.size < 100_000:
        return 1.0 / float(weights_of(row, best).sum())
    floor = best - 10
    likely, rest = row[(row > floor).nonzero()[0]], row[::_STRIDE]
    rest = rest[rest <= floor]
    return 1.0 / float(weights_of(likely, best).sum() + _STRIDE * weights_of(rest, best).sum())


def weights_of(row: Row, best: np.float32) -> Row:
    """exp(logit - best). With one new array only: if several as large as a vocabulary are freed, the C library gives
    their memory back, and getting it again takes longer than the exponentials.
    """
    weights = row - best
    np.exp(weights, out=weights)
    return weights
