"""What is learned of a tree: of each token that was put to the test, and of no other."""

import numpy as np
import pytest

from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import RULES
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft, Step
from specdec_cli.draft_length.calibration import Calibration, SiblingCalibration, outcomes


def step(drafted, accepted, parents=None, path=None):
    return Step(1, (), tuple(range(drafted)), accepted, (), "model", 0.1, 0.1, 0.0, 1.0, "", parents, path)


@pytest.mark.parametrize("accepted", range(4))
def test_of_a_chain_the_accepted_and_the_first_that_was_not(accepted):
    expected = [(0, True), (1, True), (2, True)][:accepted] + [(accepted, False)] * (accepted < 3)
    assert outcomes(step(3, accepted)) == expected
    assert list(outcomes(step(0, 0))) == []


def test_what_is_tried_is_what_the_rule_looks_at():
    """The same answer from the rule itself: a token is tried where the probability of its place is compared."""
    rng = np.random.default_rng(0)
    sampler = StandardSampler(SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    parents, tokens = (-1, -1, 0, 0, 1, 2), (0, 1, 0, 1, 0, 1)

    class Watched(tuple):
        """Tokens that note when they are asked for."""

        asked: list[int] = []  # noqa: RUF012

        def __getitem__(self, node):
            self.asked.append(node)
            return super().__getitem__(node)

    for _ in range(200):
        Watched.asked.clear()
        draft = Draft(Watched(tokens), None, "", parents)
        logits = rng.standard_normal((7, 3)).astype(np.float32)
        verdict = RULES["rejection"](draft, logits, sampler, rng)
        found = outcomes(step(6, verdict.accepted, parents, verdict.path))
        assert [node for node, _ in found] == sorted(set(Watched.asked))
        assert [node for node, stands in found if stands] == list(verdict.path)


def test_each_rank_learns_for_itself():
    ranks = SiblingCalibration(Calibration(0.0, 1.0), greedy=True)
    before = [ranks.rate(rank, 0.5) for rank in (0, 1, 2)]
    for _ in range(40):  # the first never stands, the second always does, the third is never tried
        ranks.drafted.clear()
        for rank in (0, 1, 2):
            ranks.add(rank, 0.5)
        ranks.learn(step(3, 1, (-1, -1, -1), (1,)))
    after = [ranks.rate(rank, 0.5) for rank in (0, 1, 2)]
    assert after[0] < before[0] - 0.2 and after[1] > before[1] + 0.2 and after[2] == before[2]
    ranks.drafted.clear()
    ranks.learn(step(1, 0, (-1,), ()))
    assert ranks.rate(0, 0.5) == after[0], "of a draft of somebody else's nothing is learned"
