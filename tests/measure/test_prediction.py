"""What `tune` predicts and says: every figure follows from the recording and the costs."""

import random
import re
from dataclasses import replace

import pytest

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.simulate import Answer, calibrate, predict, verdict

FLAT = Costs(Curve({1: 0.010, 17: 0.011}), Curve({1: 0.001}), 0.0005)
"""Checking is nearly free, drafting cheap."""
STEEP = Costs(Curve({1: 0.010, 17: 0.170}), Curve({1: 0.004}))
"""Checking a token costs what writing one does."""


def answers(acceptance, category="text", count=4, places=80, seed=0):
    """A draft that is as sure as it is right."""
    rng = random.Random(seed)
    texts = [tuple(rng.random() < acceptance for _ in range(places)) for _ in range(count)]
    sure, in_vain = (acceptance,) * places, (acceptance,) * (simulation.AHEAD - 1)
    return [Answer(category, 20, sure, text, tuple(() if stood else in_vain for stood in text)) for text in texts]


GOOD, POOR = answers(0.95, "code"), answers(0.05, "prose")


def says(by_category, costs, where="this machine"):
    everything = [answer for found in by_category.values() for answer in found]
    return verdict(predict(by_category, costs, True), everything, costs, True, where)


def speedups(line):
    return [float(found) for found in re.findall(r"(\d+\.\d\d)x", line)]


def test_each_category_then_all():
    code, prose, overall = predict({"code": GOOD, "prose": POOR}, FLAT, True)
    assert [found.category for found in (code, prose, overall)] == ["code", "prose", "all"]
    assert (code.tokens, prose.tokens, overall.tokens) == (320, 320, 640)
    stood = [sum(map(sum, (answer.stands for answer in found))) for found in (GOOD, POOR)]
    assert (code.acceptance, prose.acceptance) == (stood[0] / 320, stood[1] / 320)
    assert overall.acceptance == sum(stood) / 640
    assert prose.auto < overall.auto < code.auto and code.best_k > 3 and prose.best_k == 0
    assert len(predict({"code": GOOD}, FLAT, True)) == 1


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_speedups_are_over_the_target_alone(costs):
    (found,) = predict({"code": GOOD}, costs, True)
    assert found.alone_tokens_per_s == pytest.approx(1 / (costs.verify(1) + costs.other))
    adaptive = simulation.adaptive(GOOD, costs, True)
    assert found.auto == pytest.approx(adaptive.tokens_per_s(costs) / found.alone_tokens_per_s)
    assert found.tokens_per_step == adaptive.tokens / adaptive.verified.total()
    fixed = simulation.fixed(GOOD)
    assert found.fixed == pytest.approx(
        max(tally.tokens_per_s(costs) for tally in fixed.values()) / found.alone_tokens_per_s
    )
    assert fixed[found.best_k].tokens_per_s(costs) == pytest.approx(found.fixed * found.alone_tokens_per_s)


def test_where_nothing_pays_no_length_is_best():
    (found,) = predict({"prose": POOR}, STEEP, True)
    assert (found.best_k, found.fixed) == (0, 1.0) and 0.95 < found.auto <= 1.0


MORE = answers(0.9, "more", seed=1)


def test_where_a_pair_pays():
    overall = predict({"code": GOOD, "more": MORE}, FLAT, True)[-1]
    said = says({"code": GOOD, "more": MORE}, FLAT, "h200")[0]
    assert said == f"This pair pays on h200: {overall.auto:.2f}x expected with -k auto." and overall.auto > 2
    said = says({"code": GOOD, "prose": POOR}, STEEP)[0]
    assert said.startswith("This pair does not pay on this machine") and not speedups(said)
    said = says({"code": GOOD, "prose": POOR, "more": MORE}, FLAT)[0]
    code, prose, more, _ = predict({"code": GOOD, "prose": POOR, "more": MORE}, FLAT, True)
    assert prose.auto < 1.02 < more.auto
    assert f"pays on this machine for code ({code.auto:.2f}x), more ({more.auto:.2f}x); elsewhere" in said
    assert "prose" not in said


def remedies(recorded, costs):
    """The third sentence; empty where there is none."""
    return "".join(says({"text": recorded}, costs)[2:])


def half_as_wrong(answer):
    wrong = [i for i, stood in enumerate(answer.stands) if not stood]
    return replace(answer, stands=tuple(stood or i in wrong[::2] for i, stood in enumerate(answer.stands)))


def test_the_remedies_are_computed():
    found = answers(0.7)
    costs = Costs(Curve({1: 0.010, 17: 0.034}), Curve({1: 0.004}))
    base = simulation.alone(found).tokens_per_s(costs)
    cheaper, free = replace(costs, draft=Curve({1: 0.002})), replace(costs, verify=Curve({1: 0.010}))
    expected = [
        simulation.adaptive(text, prices, True).tokens_per_s(prices) / base
        for text, prices in ((found, cheaper), ([*map(half_as_wrong, found)], costs), (found, free))
    ]
    said = remedies(found, costs)
    assert speedups(said) == [round(speedup, 2) for speedup in expected]
    assert said.startswith("What would change that: ")
    for part, change in zip(said.split("; "), ("half the cost", "half as often", "verifying several"), strict=True):
        assert change in part


@pytest.mark.parametrize("greedy", [True, False])
def test_the_calibration_has_seen_every_place(greedy):
    rng = random.Random(5)
    sure = tuple(rng.random() for _ in range(200))
    stands = tuple(rng.random() < 0.9 for _ in sure)
    answer = Answer("text", 10, sure, stands, tuple(() if stood else (0.5,) for stood in stands))
    found, prior = calibrate([answer], greedy), Calibration.prior(greedy)
    assert found.looks == 200 and all(found.counts[at] > 0 for at in map(bin_of, sure))
    assert sum(found.accepted) / sum(found.counts) == pytest.approx(sum(stands) / 200, abs=0.05)
    assert found.slope == prior.slope and found.offset > prior.offset  # better than it believes
    assert calibrate([], greedy) == prior
