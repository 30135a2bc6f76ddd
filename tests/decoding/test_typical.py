"""Typical acceptance is lossy, and says by how much: its measured distance is the real one."""

from collections import Counter

import numpy as np
import pytest
from exactness import PLAIN, PROMPT, WRONG, compared, exact, outcomes, p_value, pair, with_a_model
from fakes import FakeTarget, run, tokens_of

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import LOSSY, RULES, label
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft
from specdec_cli.decoding.typical import typical
from specdec_cli.draft_length.fixed import FixedLength


def row(*probs):
    return np.log(np.array(probs, np.float32))


def verdict(draft, *rows, seed=0, sampling=PLAIN):
    return typical(draft, np.stack(rows), StandardSampler(sampling), np.random.default_rng(seed))


def test_a_token_stands_where_the_target_finds_it_typical():
    certain, flat = row(0.9, 0.05, 0.03, 0.02), row(0.25, 0.25, 0.25, 0.25)
    assert verdict(Draft((1,)), certain, flat).path == (), "0.05 is little where the target is sure"
    assert verdict(Draft((0,)), certain, flat).path == (0,)
    spread = row(*[0.08] * 12, 0.04)
    assert verdict(Draft((3,)), spread, spread).path == (0,), "0.08 is much where nothing is likely"
    found = verdict(Draft((1, 0, 2), parents=(-1, -1, 1)), certain, certain, certain, certain)
    assert found.path == (1,) and found.origin == "correction", "siblings are tried in their order"


def test_greedy_is_match():
    greedy = SamplingOptions()
    found = verdict(Draft((0, 1)), *[row(0.5, 0.3, 0.2)] * 3, sampling=greedy)
    assert (found.path, found.token, found.origin, found.distance) == ((0,), 0, "correction", None)
    assert verdict(Draft(), row(0.5, 0.3, 0.2)).distance is None, "a place without a draft is exact"


P = np.array([0.55, 0.2, 0.12, 0.06, 0.04, 0.03])
CUT = SamplingOptions(temperature=1.0, top_k=4, top_p=0.97, min_p=0.0)
DENSE, SPARSE = Categorical(None, np.array([0.1, 0.3, 0.4, 0.0, 0.2, 0.0])), Categorical(np.arange(5), np.full(5, 0.2))
IMPOSSIBLE = Categorical(np.array([5]), np.ones(1))


def tried(q):
    return lambda rng: Draft((5, q.draw(rng)), (IMPOSSIBLE, q), "", (-1, -1))


DRAFTS = {
    "one drawn, from all": lambda rng: Draft((DENSE.draw(rng),), (DENSE,)),
    "one drawn, from some": lambda rng: Draft((SPARSE.draw(rng),), (SPARSE,)),
    "after one that cannot stand, from all": tried(DENSE),
    "after one that cannot stand, from some": tried(SPARSE),
    **{
        f"chosen: {tokens}": lambda rng, tokens=tokens: Draft(tokens, None, "", (-1,) * len(tokens))
        for tokens in ((0,), (5,), (5, 1), (1, 0), (4, 5, 2), (5, 4))
    },
}


@pytest.mark.parametrize("sampling", [PLAIN, CUT])
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_the_measured_distance_is_the_real_one(sampling, draft):
    """Over all outcomes, whether tokens were drawn or chosen, and whatever siblings turned out to be."""
    rows, sampler = np.log(np.stack([P] * 4)), StandardSampler(sampling)
    p, left, measured = sampler.categorical(rows[0]), np.zeros(6), set()

    def step(rng):
        made = draft(rng)
        return made.tokens, typical(made, rows, sampler, rng)

    for prob, (tokens, result) in outcomes(step):
        left[tokens[result.path[0]] if result.path else result.token] += prob
        measured.add(round(result.distance, 12))
    real = 0.5 * sum(abs(left[token] - p.prob(token)) for token in range(6))
    assert len(measured) == 1 and measured.pop() == pytest.approx(real, abs=1e-11)


def test_it_alone_is_seen_not_to_be_exact_and_says_so():
    target, draft = pair(11)
    drafter = with_a_model(draft, "rejection")
    assert compared(target, drafter, FixedLength(3), PLAIN, "typical").error > WRONG
    counts, distances, rng = Counter(), [], np.random.default_rng(7)
    for seed in range(600):
        sampler = StandardSampler(PLAIN)
        events = run(FakeTarget(target), PROMPT, drafter(sampler, rng), 3, 6, PLAIN, "typical", seed, sampler=sampler)
        counts[tuple(tokens_of(events)[:3])] += 1
        distances.append(Metrics.of(events).distance_per_token)
    assert p_value(counts, exact(target, PLAIN, 3), 600) < 1e-6
    assert 0.01 < np.mean(distances) < 1
    assert [name for name in RULES if label(name) != name] == sorted(LOSSY) == ["typical"]
