"""Typical acceptance (Cai et al., Medusa, arXiv 2401.10774): faster, and NOT exact. It measures how far off it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.accept import kind_after, match, onto
from specdec_cli.decoding.types import Categorical, Draft, Rows, Sampler, Verdict

_LEAST, _SHARE = 0.09, 0.3
"""Medusa's epsilon and delta: a token is typical if p(x) >= min(epsilon, delta * exp(-entropy of p))."""


def typical(draft: Draft, logits: Rows, sampler: Sampler, rng: np.random.Generator) -> Verdict:
    """A draft token stands if the target finds it typical, however much likelier the draft made it; siblings are tried
    in their order; where none is typical, a token is drawn from p. At temperature 0 this is `match`, and exact.

    Verdict.distance is the total variation between p and what the rule makes of it, summed over the tokens: for given
    elder siblings, over all tokens that the draft could have drawn in a place. Without a draft the token is p's own.
    """
    if sampler.greedy:
        return match(draft, logits, sampler, rng)
    path: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    p_of: tuple[float, ...] = ()
    q_of: tuple[float, ...] = ()
    distance = 0.0
    at = -1
    while True:
        p = sampler.categorical(logits[at + 1], ahead)
        children = draft.children(at)
        least = _threshold(p) if children else 0.0
        distance += _distance(p, p.probs >= least, draft, children)
        for child in children:
            token = draft.tokens[child]
            if p.prob(token) >= least:
                at = child
                path += (child,)
                ahead += (token,)
                p_of += (p.prob(token),)
                q_of += (1.0 if draft.q is None else draft.q[child].prob(token),)
                break
        else:
            token = p.draw(rng)
            p_of += (p.prob(token),)
            return Verdict(path, token, kind_after(path, children), p_of, q_of, distance if draft.tokens else None)


def _threshold(p: Categorical) -> float:
    some = p.probs[p.probs > 0].astype(np.float64)
    return min(_LEAST, _SHARE * float(np.exp(np.sum(some * np.log(some)))))


def _distance(p: Categorical, passes: NDArray[np.bool_], draft: Draft, children: Sequence[int]) -> float:
    """Half the sum of absolute differences between p and the distribution of the token in this place."""
    if not children:
        return 0.0
    found = np.zeros(p.probs.size)
    left = 1.0
    for child in children:
        q = Categorical(np.array([draft.tokens[child]]), np.ones(1)) if draft.q is None else draft.q[child]
        accepted = np.where(passes, onto(p, q), 0.0)
        found += left * accepted
        left *= 1.0 - float(accepted.sum())
    return 0.5 * float(np.abs(found + (left - 1.0) * p.probs).sum())
