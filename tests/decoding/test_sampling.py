"""The sampler against a slow, obvious implementation of the same definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler, confidence


def obvious(row, s):
    """Sort everything, cut top-k, top-p, min-p one after the other, then apply the temperature. float64 all through."""
    ranked = sorted(((float(logit), -i) for i, logit in enumerate(row)), reverse=True)
    if s.top_k:
        ranked = ranked[: s.top_k]
    if s.top_p < 1:
        weights = [math.exp(logit - ranked[0][0]) for logit, _ in ranked]
        total, running, kept = sum(weights), 0.0, 0
        for weight in weights:
            running += weight
            kept += 1
            if running >= s.top_p * total:
                break
        ranked = ranked[:kept]
    if s.min_p > 0:
        ranked = [pair for pair in ranked if pair[0] >= ranked[0][0] + math.log(s.min_p)]
    weights = {-i: math.exp((logit - ranked[0][0]) / s.temperature) for logit, i in ranked}
    total = sum(weights.values())
    return {i: weight / total for i, weight in sorted(weights.items())}


def as_dict(distribution):
    ids = range(distribution.probs.size) if distribution.ids is None else distribution.ids.tolist()
    return dict(zip(ids, distribution.probs.tolist(), strict=True))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([3, 300, 10_001]),  # the last takes the shortcuts of large vocabularies
    temperature=st.floats(0.2, 3),
    top_k=st.sampled_from([0, 1, 2, 10, 40]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    scale=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_agrees_with_the_obvious_sampler(seed, size, temperature, top_k, top_p, min_p, scale):
    row = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    s = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got, want = as_dict(StandardSampler(s).categorical(row)), obvious(row, s)
    assert got.keys() == want.keys()
    assert list(got) == sorted(got)
    assert list(got.values()) == pytest.approx(list(want.values()), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("size", [10, 20_000])
def test_ties_at_the_edge_keep_the_lower_ids(size):
    row = np.zeros(size, np.float32)
    row[7] = 1
    s = SamplingOptions(temperature=1, top_k=4, top_p=1, min_p=0)
    assert list(as_dict(StandardSampler(s).categorical(row))) == list(obvious(row, s)) == [0, 1, 2, 7]


@pytest.mark.parametrize("is_sparse", [True, False])
def test_draw_at_the_ends_of_the_unit_interval(is_sparse):
    probs = np.zeros(2000, np.float32)
    probs[[3, 1500]] = 0.5
    distribution = Categorical(np.arange(2000) if is_sparse else None, probs)
    assert [distribution.at(uniform) for uniform in (0.0, np.nextafter(1.0, 0.0))] == [3, 1500]


def test_penalties_follow_llama_cpp():
    row = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
    s = SamplingOptions(repeat_penalty=2.0, frequency_penalty=0.1, presence_penalty=0.5, repeat_last_n=4)
    sampler = StandardSampler(s)
    sampler.follow([3, 3, 0, 1, 1, 9])  # the window holds 0, 1, 1, 9; 9 is not in this vocabulary
    assert sampler.prepared(row).tolist() == pytest.approx([2 / 2 - 0.1 - 0.5, -2 - 0.2 - 0.5, 0.5, 3.0])
    assert sampler.argmax(row) == 3
    assert sampler.argmax(row, ahead=[3, 3, 3]) == 0  # draft tokens before this row count as history
    assert row.tolist() == [2.0, -1.0, 0.5, 3.0]
    text = [3]
    sampler.follow(text)
    for window in ([3, 0], [3, 0, 0], [3, 0, 0, 1], [0, 0, 1, 1]):
        text.append(window[-1])
        penalised = [2 / 2 - 0.1 * window.count(0) - 0.5, -2 - 0.1 * window.count(1) - 0.5, 0.5, 3 / 2 - 0.1 - 0.5]
        expected = [penalised[token] if token in window else row[token] for token in range(4)]
        assert sampler.prepared(row).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("ahead", [2, 6, 9.9, 10.1, 14, 18])
def test_confidence_in_a_large_vocabulary(ahead):
    """By how far the best token is ahead of the next, and so by how many tokens are sampled."""
    row = (np.random.default_rng(5).standard_normal(130_000) * 2.5).astype(np.float32)
    row[77] = row.max() + ahead
    exact = 1 / np.exp(row.astype(np.float64) - row.max()).sum()
    assert confidence(row) == pytest.approx(exact, rel=0.005)
    row[np.arange(130_000) != 77] = row[77] - np.float32(ahead)
    exact = 1 / np.exp(row.astype(np.float64) - row.max()).sum()
    assert confidence(row) == pytest.approx(exact, rel=0.0001)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", math.nan), ("temperature", -0.1), ("top_p", 0.0), ("min_p", 1.1), ("top_k", -1)),
        *(("repeat_last_n", -1), ("repeat_last_n", 2**31), ("repeat_penalty", 1e-46), ("repeat_penalty", 1e39)),
        *(("presence_penalty", math.nan), ("presence_penalty", -1e39), ("frequency_penalty", 1e39)),
    ],
)
def test_senseless_settings_are_refused(field, value):
    with pytest.raises(UsageError, match="cannot be"):
        SamplingOptions(**{field: value})


@pytest.mark.parametrize("cuts", [{}, {"min_p": 0.05}, {"top_p": 0.9, "top_k": 40}])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_are_an_error(temperature, cuts):
    row = np.zeros(600, np.float32)
    row[7] = np.nan
    sampler = StandardSampler(SamplingOptions(temperature=temperature, **cuts))
    with pytest.raises(SpecdecError, match="logits are not numbers"):
        (sampler.categorical if temperature else sampler.argmax)(row)
