"""Acceptance rules: which draft tokens stand, and what follows them. One function each; all are exact.

p is the target's distribution and q the draft's, after the same temperature, cuts and penalties.
Rows are looked at one by one, and none past the first rejection.
"""

from __future__ import annotations

import numpy as np

from specdec_cli.decoding.types import AcceptRule, Categorical, Draft, Logits, Sampler, Verdict


def match(draft: Draft, logits: Logits, sampler: Sampler, rng: np.random.Generator) -> Verdict:
    """Draw from p as if there were no draft; a draft token stands as long as the draw agrees with it.

    Exact for any drafter, and one uniform number is used per emitted token, so that with one seed the
    output is the very text that the target alone produces.
    """
    probs: tuple[float, ...] = ()
    count = len(draft.tokens)
    for i in range(count + 1):
        ahead = draft.tokens[:i]
        if sampler.greedy:
            token = sampler.argmax(logits[i], ahead)
        else:
            p = sampler.categorical(logits[i], ahead)
            token = p.draw(rng)
            probs += (p.prob(token),)
        if i == count:
            return Verdict(i, token, "bonus" if count else "plain", probs)
        if token != draft.tokens[i]:
            return Verdict(i, token, "correction", probs)
    raise AssertionError("unreachable")


def rejection(draft: Draft, logits: Logits, sampler: Sampler, rng: np.random.Generator) -> Verdict:
    """Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    Draft token x stands with probability min(1, p(x) / q(x)); the first that does not is replaced by a
    draw from max(0, p - q), normalised; after a whole accepted draft a bonus token is drawn from p.
    A deterministic drafter has a one-hot q: x stands with probability p(x). When p is one-hot too
    (temperature 0), all of this is `match`.
    """
    if sampler.greedy:
        return match(draft, logits, sampler, rng)
    p_of: tuple[float, ...] = ()
    q_of: tuple[float, ...] = ()
    for i, token in enumerate(draft.tokens):
        p = sampler.categorical(logits[i], draft.tokens[:i])
        p_x = p.prob(token)
        q = draft.q[i] if draft.q is not None else None
        q_x = 1.0 if q is None else q.prob(token)
        if rng.random() * q_x >= p_x:
            instead = (without(p, token) if q is None else residual(p, q)).draw(rng)
            return Verdict(i, instead, "correction", (*p_of, p.prob(instead)), q_of)
        p_of += (p_x,)
        q_of += (q_x,)
    p = sampler.categorical(logits[len(draft.tokens)], draft.tokens)
    token = p.draw(rng)
    return Verdict(len(draft.tokens), token, "bonus" if draft.tokens else "plain", (*p_of, p.prob(token)), q_of)


def residual(p: Categorical, q: Categorical) -> Categorical:
    """max(0, p - q), normalised: what is left of p for the case that a token drawn from q was rejected."""
    left = p.probs.astype(np.float64)
    if p.ids is None and q.ids is None:
        shared = min(p.probs.size, q.probs.size)
        left[:shared] -= q.probs[:shared]
    elif p.ids is None and q.ids is not None:
        known = q.ids < left.size
        left[q.ids[known]] -= q.probs[known]
    elif p.ids is not None and q.ids is None:
        known = p.ids < q.probs.size
        left[known] -= q.probs[p.ids[known]]
    elif p.ids is not None and q.ids is not None:
        place = q.ids.searchsorted(p.ids)
        place[place == q.ids.size] = 0
        left -= np.where(q.ids[place] == p.ids, q.probs[place], 0.0)
    np.maximum(left, 0.0, out=left)
    mass = left.sum()
    if mass <= 0.0:  # p equals q up to rounding, and so does what is left, up to its scale
        return p
    return Categorical(p.ids, left / mass)


def without(p: Categorical, token: int) -> Categorical:
    """p given that it is not `token`: the residual against a one-hot q."""
    left = p.probs.astype(np.float64)
    at = token if p.ids is None else int(p.ids.searchsorted(token))
    if at < left.size and (p.ids is None or p.ids[at] == token):
        left[at] = 0.0
    mass = left.sum()
    if mass <= 0.0:  # p is one-hot on the token, which then cannot have been rejected but by rounding
        return p
    return Categorical(p.ids, left / mass)


RULES: dict[str, AcceptRule] = {"match": match, "rejection": rejection}
