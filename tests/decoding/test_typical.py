"""Typical acceptance is lossy, and says by how much: its measured distance is the real one."""

from collections import Counter

import numpy as np
import pytest
from exactness import PROMPT, WRONG, Doubles, compared, exact, outcomes, p_value, pair, with_a_model
from fakes import FakeTarget, run, tokens_of

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.rules import LOSSY, RULES, label
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft
from specdec_cli.decoding.typical import typical
from specdec_cli.draft_length.auto import FixedLength

WIDE = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def row(*probs):
    return np.log(np.array(probs, np.float32))


def verdict(draft, *rows, seed=0, sampling=WIDE):
    return typical(draft, np.stack(rows), StandardSampler(sampling), np.random.default_rng(seed))


def test_a_token_stands_where_the_target_finds_it_typical():
    certain, flat = row(0.9, 0.05, 0.03, 0.02), row(0.25, 0.25, 0.25, 0.25)
    assert verdict(Draft((1,)), certain, flat).path == (), "0.05 is little where the target is sure"
    assert verdict(Draft((0,)), certain, flat).path == (0,)
    spread = row(*[0.08] * 12, 0.04)
    assert verdict(Draft((3,)), spread, spread).path == (0,), "0.08 is much where nothing is likely"


def test_siblings_are_tried_in_their_order():
    certain = row(0.9, 0.05, 0.03, 0.02)
    found = verdict(Draft((1, 0, 2), parents=(-1, -1, 1)), certain, certain, certain, certain)
    assert found.path == (1,) and found.kind == "correction"


def test_greedy_is_match():
    greedy = SamplingSettings()
    found = verdict(Draft((0, 1)), *[row(0.5, 0.3, 0.2)] * 3, sampling=greedy)
    assert (found.path, found.token, found.kind, found.distance) == ((0,), 0, "correction", None)


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("seed", [3, 4])
def test_the_measured_distance_is_the_real_one(drawn, seed):
    """Over all outcomes; and what a step leaves is not the target's distribution."""
    sampler = StandardSampler(WIDE)
    p_row, q_row = Doubles(6, seed).row([1]), Doubles(6, seed + 50).row([1])
    p, q = sampler.categorical(p_row), sampler.categorical(q_row)
    left, measured = np.zeros(6), set()

    def step(rng):
        x = q.draw(rng) if drawn else int(q.probs.argmax())
        return x, typical(Draft((x,), (q,) if drawn else None), np.stack([p_row, p_row]), sampler, rng)

    for prob, (x, found) in outcomes(step):
        left[x if found.path else found.token] += prob
        measured.add(round(found.distance, 12))
    real = 0.5 * np.abs(left - p.probs).sum()
    assert len(measured) == 1 and measured.pop() == pytest.approx(real, abs=1e-11)


def test_it_is_seen_not_to_be_exact_and_says_so():
    target, draft = pair(11)
    drafter = with_a_model(draft, "rejection")
    assert compared(target, drafter, FixedLength(3), WIDE, "typical").error > WRONG
    counts, distances, rng = Counter(), [], np.random.default_rng(7)
    for seed in range(1000):
        sampler = StandardSampler(WIDE)
        events = run(FakeTarget(target), PROMPT, drafter(sampler, rng), 3, 6, WIDE, "typical", seed, sampler=sampler)
        counts[tuple(tokens_of(events)[:3])] += 1
        distances.append(Metrics.of(events).distance_per_token)
    assert p_value(counts, exact(target, WIDE, 3), 1000) < 1e-6
    assert 0.01 < np.mean(distances) < 1


def test_only_it_is_called_lossy():
    assert [name for name in RULES if "lossy" in label(name)] == sorted(LOSSY) == ["typical"]
