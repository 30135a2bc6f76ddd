"""From logits to a distribution: penalties, top-k, top-p, min-p, temperature, in llama.cpp's order.

One implementation makes both the target's p and the draft's q. The three cuts each keep a prefix of the
tokens ordered by probability (ties: the lower id first), so only the few candidates are ever sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.types import Categorical

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What to sample from. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch a cut off."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64

    def __post_init__(self) -> None:
        for name, value, valid, fix in (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 (greedy) or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]; 1 is off"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "a number in [0, 1]; 0 is off"),
            ("repeat penalty", self.repeat_penalty, 0 < self.repeat_penalty < float("inf"), "more than 0; 1 is off"),
            ("frequency penalty", self.frequency_penalty, abs(self.frequency_penalty) < float("inf"), "a number"),
            ("presence penalty", self.presence_penalty, abs(self.presence_penalty) < float("inf"), "a number"),
            ("penalty window", self.penalty_window, self.penalty_window >= 0, "0 or more tokens"),
        ):
            if not valid:
                raise UsageError(f"{name} cannot be {value}", f"Give {fix}.")

    @property
    def penalises(self) -> bool:
        """Whether the history matters at all."""
        changes = self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        return changes and self.penalty_window > 0


class StandardSampler:
    """The sampler behind `--temp`, `--top-k`, `--top-p`, `--min-p` and the penalties."""

    def __init__(self, settings: SamplingSettings) -> None:
        self.settings = settings
        self.greedy = settings.temperature == 0
        self._context: Sequence[int] = ()
        self._penalises = settings.penalises
        self._log_min_p = float(np.log(settings.min_p)) if settings.min_p > 0 else -np.inf

    def watch(self, context: Sequence[int]) -> None:
        self._context = context

    def argmax(self, row: Row, ahead: Sequence[int] = ()) -> int:
        if self._penalises:
            row = self._penalised(row, ahead)
        return int(row.argmax())

    def categorical(self, row: Row, ahead: Sequence[int] = ()) -> Categorical:
        """The distribution after all cuts, at a temperature above 0.

        row: float32 (n_vocab,). Cut as llama.cpp cuts: top-k, then top-p of what is left, then min-p,
        all on the probabilities at temperature 1; the temperature is applied to the survivors.
        """
        s = self.settings
        if self._penalises:
            row = self._penalised(row, ahead)
        if 0 < s.top_k < row.size:
            ids = _top_ids(row, s.top_k)
            mass = None
        elif s.top_p < 1:
            ids, mass = self._enough_for_top_p(row)
        elif s.min_p > 0:
            ids = (row >= row.max() + np.float32(self._log_min_p)).nonzero()[0]
            return _weighted(ids, row[ids].astype(np.float64), s.temperature)
        else:
            weights = np.exp((row - row.max()) / np.float32(s.temperature))
            weights /= weights.sum()
            return Categorical(None, weights)
        values = row[ids]
        order = (-values).argsort(kind="stable")  # by falling probability, ties in order of token id
        falling = values[order].astype(np.float64)
        falling -= falling[0]
        keep = falling.size
        if s.top_p < 1:
            cumulative = np.exp(falling).cumsum()
            goal = s.top_p * cumulative[-1] if mass is None else mass
            keep = int(cumulative.searchsorted(goal)) + 1
        if s.min_p > 0:
            keep = min(keep, int((-falling).searchsorted(-self._log_min_p, "right")))
        kept = order[:keep]
        kept.sort()
        return _weighted(ids[kept], values[kept].astype(np.float64), s.temperature)

    def _enough_for_top_p(self, row: Row) -> tuple[NDArray[np.int64], float]:
        """Ids that hold all that top-p and min-p can keep of a whole vocabulary, and the mass top-p asks for.

        The mass needs the sum over the vocabulary; the sorting then done needs only a few hundred ids.
        """
        top = row.max()
        mass = float(np.exp(row - top).sum(dtype=np.float64)) * self.settings.top_p
        if self.settings.min_p > 0:
            return (row >= top + np.float32(self._log_min_p)).nonzero()[0], mass
        take = 256
        while take < row.size:
            ids = _top_ids(row, take)
            if np.exp(row[ids].astype(np.float64) - float(top)).sum() >= mass:
                return ids, mass
            take *= 8
        return np.arange(row.size), mass

    def _penalised(self, row: Row, ahead: Sequence[int]) -> Row:
        """A copy of `row` with the tokens of the recent history made less likely, as llama.cpp does it."""
        s = self.settings
        recent = [*self._context[-s.penalty_window :], *ahead][-s.penalty_window :]
        ids, counts = np.unique(np.array(recent, dtype=np.int64), return_counts=True)
        known = ids < row.size  # a padded target may have emitted an id that the draft's rows lack
        ids, counts = ids[known], counts[known]
        row = row.copy()
        values = row[ids]
        values = np.where(values <= 0, values * s.repeat_penalty, values / s.repeat_penalty)
        row[ids] = values - counts * s.frequency_penalty - s.presence_penalty
        return row


def _weighted(ids: NDArray[np.int64], logits: NDArray[np.float64], temperature: float) -> Categorical:
    """The softmax of a few logits at a temperature."""
    logits -= np.maximum.reduce(logits)
    if temperature != 1:
        logits /= temperature
    weights = np.exp(logits, out=logits)
    weights /= np.add.reduce(weights)
    return Categorical(ids, weights)


def _top_ids(row: Row, k: int) -> NDArray[np.int64]:
    """The ids of the k largest logits, ascending; of equal ones at the edge the lower ids.

    On a large vocabulary, the k-th largest of the maxima of interleaved groups is a lower bound for the
    k-th largest logit, which leaves few values to partition.
    """
    groups = 64
    if row.size >= 128 * groups and k <= row.size // groups:
        maxima = row[: row.size - row.size % groups].reshape(groups, -1).max(axis=0)
        bound = np.partition(maxima, -k)[-k]
        ids: NDArray[np.int64] = (row >= bound).nonzero()[0]
        values = row[ids]
        kth = np.partition(values, -k)[-k]
        ids = ids[values >= kth]
    else:
        kth = np.partition(row, -k)[-k]
        ids = (row >= kth).nonzero()[0]
    if ids.size > k:  # ties at the edge: drop the highest ids
        keep = np.ones(ids.size, dtype=bool)
        keep[(row[ids] == kth).nonzero()[0][k - ids.size :]] = False
        ids = ids[keep]
    return ids


def confidence(row: Row) -> float:
    """The probability of the most likely token at temperature 1, before any cut."""
    return 1.0 / float(np.exp(row - row.max()).sum())


def top_two_margin(row: Row) -> float:
    """How far the best logit is ahead of the second: below about 0.05, rounding can turn the order."""
    best, second = np.partition(row, -2)[-1], np.partition(row, -2)[-2]
    return float(best - second)
