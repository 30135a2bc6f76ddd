"""benchmarks/coupling.py: its exact probabilities against draws."""

import coupling
import numpy as np
import pytest

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.noise import SharedNoise


def categorical(ids, weights):
    return Categorical(np.array(ids), np.array(weights) / sum(weights))


PAIRS = [
    (categorical([1, 4, 7], [5, 3, 2]), categorical([1, 4, 7], [2, 3, 5])),
    (categorical([1, 4, 7], [5, 3, 2]), categorical([4, 9], [1, 1])),  # either cuts what the other keeps
    (categorical([3], [1]), categorical([3, 5], [3, 1])),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_the_probabilities_are_those_of_draws(p, q):
    rejection, coupled = coupling.accepted(p, q)
    n = 6000
    same = sum(noise.draw(p, 5) == noise.draw(q, 5) for noise in map(SharedNoise, range(n)))
    assert coupled == pytest.approx(same / n, abs=4 * 0.5 / n**0.5)
    assert rejection == pytest.approx(sum(min(p.prob(token), q.prob(token)) for token in range(10)))
    assert rejection >= coupled >= rejection / (2 - rejection) - 1e-12, "the bound of the paper: (1 - d) / (1 + d)"


def test_equal_and_disjoint_distributions():
    p = PAIRS[0][0]
    assert coupling.accepted(p, p) == pytest.approx((1, 1))
    assert coupling.accepted(p, categorical([2, 3], [1, 1])) == (0, 0)


def test_a_wrong_token_ends_a_draft():
    assert coupling.expected([0.5, 0.5, 0.0]) == pytest.approx(0.5 + 0.25 + 0.5)
