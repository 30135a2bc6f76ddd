"""Log-probabilities of an answer's tokens: the target's own, before temperature and cuts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import Row, StandardSampler, weights_of
from specdec_cli.decoding.types import AcceptRule, Draft, Rows, TokenLogprobs, Verdict

_PLAIN = StandardSampler(SamplingOptions())


def with_logprobs(rule: AcceptRule, top: int) -> AcceptRule:
    """The rule, with log-probabilities in its verdicts. top: of how many of the likeliest tokens at each position."""

    def judge(draft: Draft, rows: Rows, sampler: StandardSampler, rng: np.random.Generator) -> Verdict:
        verdict = rule(draft, rows, sampler, rng)
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        nodes = (-1, *verdict.path)
        found = [logprobs_of(rows[node + 1], token, top) for node, token in zip(nodes, tokens, strict=True)]
        return replace(verdict, logprobs=tuple(found))

    return judge


def logprobs_of(row: Row, token: int, top: int) -> TokenLogprobs:
    """A token's log-probability in a row of logits, and those of the `top` likeliest tokens."""
    best = row.max()
    mass = math.log(weights_of(row, best).sum(dtype=np.float64))
    likeliest = _PLAIN.likeliest(row, top)[0] if top else ()
    return TokenLogprobs(float(row[token] - best) - mass, tuple((id, float(row[id] - best) - mass) for id in likeliest))
