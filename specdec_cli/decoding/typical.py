"""Typical acceptance (Cai et al., Medusa, arXiv 2401.10774): faster, but NOT exact. It measures how far off it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.accept import Selection, match, onto, walk
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft, Rows, Verdict

_MIN, _SHARE = 0.09, 0.3
"""Medusa's epsilon and delta: a token is typical if p(x) >= min(epsilon, delta * exp(-entropy of p))."""


def typical(draft: Draft, logits: Rows, sampler: StandardSampler, rng: np.random.Generator) -> Verdict:
    """Accept a draft token if the target finds it typical, whatever q is; siblings are tried in order, and if none is
    typical, a token is drawn from p. At temperature 0 this is `match`, and exact.

    Verdict.distance is the total variation between p and the rule's own distribution, summed over the tokens: given the
    earlier siblings, over all tokens that the draft could have drawn there.
    """
    if sampler.greedy:
        return match(draft, logits, sampler, rng)
    distances: list[float] = []

    def choose(row: Any, ahead: Sequence[int], children: Sequence[int]) -> Selection:
        p = sampler.categorical(row, ahead)
        if children:
            some = p.probs[p.probs > 0].astype(np.float64)
            least = min(_MIN, _SHARE * float(np.exp(np.sum(some * np.log(some)))))
            distances.append(_distance(p, p.probs >= least, draft, children))
            for child in children:
                if p.prob(draft.tokens[child]) >= least:
                    return p, child, draft.tokens[child]
        return p, None, p.draw(rng)

    verdict = walk(draft, logits, choose)
    return replace(verdict, distance=sum(distances)) if draft.tokens else verdict


def _distance(p: Categorical, passes: NDArray[np.bool_], draft: Draft, children: Sequence[int]) -> float:
    """Half the sum of absolute differences between p and the distribution of the token at this position."""
    kept = np.zeros(p.probs.size)
    left = 1.0
    for child in children:
        q = Categorical.only(draft.tokens[child]) if draft.q is None else draft.q[child]
        accepted = np.where(passes, onto(p, q), 0.0)
        kept += left * accepted
        left *= 1.0 - float(accepted.sum())
    return 0.5 * float(np.abs(kept + (left - 1.0) * p.probs).sum())
