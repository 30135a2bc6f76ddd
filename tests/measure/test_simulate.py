"""What a recording comes to under a machine's costs: replays, predictions, and the best length that does not adapt."""

import random
import re
from dataclasses import replace

import pytest

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.simulate import Answer, StaticPolicy, best_static, calibrate, predict, replay, verdict

COSTS = Costs(Curve({1: 10.0, 2: 12.0, 3: 13.0, 4: 15.0}), Curve({1: 1.0, 2: 1.5, 5: 3.0}), 0.5)

#            place:  0    1     2     3    4     5    6
STANDS = (True, True, False, True, True, True, False)
ANSWER = Answer("text", 4, (0.9, 0.8, 0.7, 0.6, 0.2, 0.9, 0.9), STANDS, ((), (), (0.5, 0.4), (), (), (), (0.9,)))


def test_a_replay_is_the_arithmetic_of_its_passes():
    steps = []
    tally = replay(FixedLength(2), [ANSWER], COSTS, steps.append)
    # Places 0-2 (two accepted, a bonus), 3-5 (the same), then the last alone, for there is no room for a draft.
    assert [(len(step.drafted), step.accepted) for step in steps] == [(2, 2), (2, 2), (0, 0)]
    assert tally.verified == {3: 2, 1: 1}
    assert tally.read == {5: 1, 2: 1, 1: 2}  # the prompt and the pending token; the bonus and what it followed
    assert tally.seconds(COSTS) == pytest.approx(2 * 13.5 + 10.5 + 3.0 + 1.5 + 2 * 1.0)
    assert tally.seconds(COSTS) == pytest.approx(steps[-1].at)
    assert (tally.tokens, tally.drafted, tally.accepted) == (7, 4, 4)


def test_the_third_pass_of_a_size_costs_what_repeated_ones_do():
    costs, steps = replace(COSTS, repeated=Curve({1: 10.0, 3: 11.0})), []
    tally = replay(FixedLength(2), [replace(ANSWER, accepted=(False,) * 7, after_rejection=((0.5,) * 7,) * 7)], costs)
    assert tally.verified == {3: 5, 2: 1, 1: 1} and +tally.repeated == {3: 3}
    assert tally.verify_s(costs) == 2 * 13.0 + 3 * 11.0 + 12.0 + 10.0
    replay(FixedLength(2), [ANSWER, ANSWER], costs, steps.append)
    assert [step.verify_s for step in steps] == [13.0, 13.0, 10.0] * 2, "never three in a row"


def test_after_a_wrong_token_the_draft_goes_on_in_vain():
    steps = []
    replay(FixedLength(4, 0.45), [ANSWER], COSTS, steps.append)
    # Place 2 is wrong; its next confidence is 0.5, enough to go on, the one after that is not.
    assert [(len(step.drafted), step.accepted) for step in steps] == [(4, 2), (1, 1), (1, 1)]
    steps.clear()
    replay(FixedLength(6), [ANSWER], COSTS, steps.append)
    assert (len(steps[0].drafted), steps[0].accepted) == (5, 2), "as far as the recording knows the draft"


def test_a_threshold_stops_before_the_token_and_costs_a_pass():
    tally = replay(FixedLength(4, 0.75), [ANSWER], COSTS)
    # Places 0 and 1 are drafted and 2 is looked at; 3 and 4 are only looked at; 5 is drafted, and 6 has no room.
    assert tally.read == {5: 1, 2: 1, 1: 4}
    assert tally.drafted == tally.accepted == 3
    assert tally.verified == {3: 1, 1: 2, 2: 1}


# --- what `tune` predicts and says ---

FLAT = Costs(Curve({1: 0.010, 17: 0.011}), Curve({1: 0.001}), 0.0005)
"""Checking is nearly free, drafting cheap."""


def answers(acceptance, category="text", count=4, places=80, seed=0):
    """A draft that is as sure as it is right."""
    rng = random.Random(seed)
    texts = [tuple(rng.random() < acceptance for _ in range(places)) for _ in range(count)]
    sure, in_vain = (acceptance,) * places, (acceptance,) * (simulation.AHEAD - 1)
    return [Answer(category, 20, sure, text, tuple(() if stood else in_vain for stood in text)) for text in texts]


GOOD, POOR = answers(0.95, "code"), answers(0.05, "prose")


def test_each_category_then_all():
    code, prose, overall = predict([*GOOD, *POOR], FLAT, True)
    assert [found.category for found in (code, prose, overall)] == ["code", "prose", "all"]
    assert (code.tokens, prose.tokens, overall.tokens) == (320, 320, 640)
    stood = [sum(map(sum, (answer.accepted for answer in found))) for found in (GOOD, POOR)]
    assert (code.acceptance, prose.acceptance) == (stood[0] / 320, stood[1] / 320)
    assert overall.acceptance == sum(stood) / 640
    assert prose.auto < overall.auto < code.auto and code.best_k > 3 and prose.best_k == 0
    mixed = [answer for pair in zip(GOOD, POOR, strict=True) for answer in pair]
    in_turn = simulation.adaptive(mixed, FLAT, True).tokens_per_s(FLAT) / overall.alone_tokens_per_s
    assert predict(mixed, FLAT, True)[-1].auto == in_turn != overall.auto, "as recorded, not by category"
    assert len(predict(GOOD, FLAT, True)) == 1


@pytest.mark.parametrize(
    ("code", "prose", "says"),
    [
        (1.5, 1.3, "This pair pays on h200: 1.40x expected with -k auto."),
        (1.5, 0.9, "This pair pays on h200 for code (1.50x); elsewhere auto will not use the draft model."),
        (1.0, 0.9, "This pair does not pay on h200: auto will mostly not use the draft model."),
    ],
)
def test_where_a_pair_pays(code, prose, says):
    found = [
        simulation.Prediction(category, 640, 0.7, 2.0, alone_tokens_per_s=100.0, auto=auto, best_k=3, fixed=auto)
        for category, auto in (("code", code), ("prose", prose), ("all", 1.4))
    ]
    assert verdict(found, answers(0.7, count=1), FLAT, True, "h200")[0] == says


def test_the_remedies_are_computed():
    found, costs = answers(0.7), Costs(Curve({1: 0.010, 17: 0.034}), Curve({1: 0.004}))
    overall = predict(found, costs, True)
    said = verdict(overall, found, costs, True, "this machine")[2]
    assert said.startswith("What would change that: ")
    for part, change in zip(said.split("; "), ("half the cost", "half as often", "verifying several"), strict=True):
        assert change in part and float(re.findall(r"(\d+\.\d\d)x", part)[0]) > overall[-1].auto
    cheaper = replace(costs, draft=Curve({1: 0.002}))
    faster = simulation.adaptive(found, cheaper, True).tokens_per_s(cheaper) / overall[-1].alone_tokens_per_s
    assert f"half the cost: {faster:.2f}x" in said


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


# --- the best fixed length, for engines that have no other ---

EVEN = Costs(Curve({1: 1.0}), Curve({1: 0.1, 17: 0.5}))
OURS, THEIRS = StaticPolicy((0.0,), rereads=False, rule="rejection"), StaticPolicy((0.0,), rereads=True, rule="match")


def written(pattern, confidence=0.9):
    stands = tuple(mark == "1" for mark in pattern)
    return Answer("text", 4, (confidence,) * len(stands), stands, tuple(() if ok else (0.5,) * 15 for ok in stands))


def test_where_all_stands_the_longest_is_best_until_rereading_costs_too_much_and_where_nothing_does_none():
    right = [written("1" * 170)]
    best = best_static(right, EVEN, True, OURS)
    assert best.tokens == 16 and best.speedup == pytest.approx(17 / 2.6, rel=0.1)
    rereading = best_static(right, EVEN, True, THEIRS)
    assert rereading.speedup < best.speedup
    dear = Costs(EVEN.verify, Curve({1: 0.1, 2: 0.2, 17: 9.0}))
    assert best_static(right, dear, True, THEIRS).tokens < best_static(right, dear, True, OURS).tokens
    alone = best_static([written("0" * 80)], EVEN, True, THEIRS)
    assert (alone.tokens, alone.speedup) == (0, 1.0) and alone.alone_tokens_per_s == pytest.approx(1.0)


def test_a_least_confidence_is_chosen_where_it_tells_right_from_wrong():
    sure, unsure = written("1" * 90, 0.95), written("0" * 90, 0.2)
    policy = StaticPolicy((0.0, 0.5, 0.75), rereads=True, rule="match")
    mixed = best_static([sure, unsure], EVEN, True, policy)
    assert mixed.min_p == 0.5 and mixed.tokens >= 9
    assert mixed.speedup > best_static([sure, unsure], EVEN, True, THEIRS).speedup


def test_its_time_is_that_of_its_passes():
    """Of three tokens at a time, counted by hand: 1 1 0 makes a pass of four rows, after three of the draft model."""
    text = [written("110" * 20)]
    tally = replay(FixedLength(2), text, simulation.FREE)
    best = best_static(text, Costs(Curve({1: 1.0, 3: 1.0, 4: 50.0}), Curve({1: 0.1, 3: 0.3, 4: 0.4})), True, THEIRS)
    assert best.tokens == 2 and tally.verified[3] >= 19
    assert best.tokens_per_s == pytest.approx(60 / (20 * (1.0 + 2 * 0.1 + 0.3)), rel=0.03)
