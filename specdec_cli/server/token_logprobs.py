"""The target's own probabilities of the tokens of an answer, before temperature and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specdec_cli.decoding.sampling import Row, SamplingSettings, StandardSampler
from specdec_cli.decoding.types import AcceptRule, Draft, Rows, Token, Verdict

_PLAIN = StandardSampler(SamplingSettings())


class TokenLogprob(NamedTuple):
    """A token's bytes and the natural logarithm of its probability; the same of the likeliest at its place."""

    piece: bytes
    logprob: float
    likeliest: list[tuple[bytes, float]]


class LogprobRule:
    """An acceptance rule that notes the probabilities of what it accepts. most: of the likeliest tokens at a place.

    What ends an answer ends it for `taken`, too: of a verdict's tokens only the first may have become text.
    """

    def __init__(self, rule: AcceptRule, piece: Callable[[int], bytes], most: int) -> None:
        self._rule, self._piece, self._most = rule, piece, most
        self._places: list[TokenLogprob] = []

    def __call__(self, draft: Draft, rows: Rows, sampler: StandardSampler, rng: np.random.Generator) -> Verdict:
        verdict = self._rule(draft, rows, sampler, rng)
        nodes = [-1, *verdict.path]
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        self._places = [self._place(rows[node + 1], token) for node, token in zip(nodes, tokens, strict=True)]
        return verdict

    def taken(self, tokens: Sequence[Token]) -> list[TokenLogprob]:
        """Of a step's tokens, which begin the last verdict. A forced one has the probability 1: it had no logits."""
        forced = [TokenLogprob(self._piece(token.id), 0.0, []) for token in tokens if token.origin == "forced"]
        return [*self._places[: len(tokens) - len(forced)], *forced]

    def _place(self, row: Row, token: int) -> TokenLogprob:
        best = row.max()
        mass = math.log(np.exp(row - best).sum(dtype=np.float64))
        ids = _PLAIN.likeliest(row, self._most)[0] if self._most else []

        def logprob(token: int) -> float:
            return float(row[token] - best) - mass

        return TokenLogprob(self._piece(token), logprob(token), [(self._piece(id), logprob(id)) for id in ids])
