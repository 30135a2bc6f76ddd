"""What a recording comes to under a machine's costs: replays, predictions, and the best length that does not adapt."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import hardware
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.simulate import Answer, StaticPolicy, best_static, calibrate, predict, replay, verdict

RECORDINGS = Path(__file__).parents[2] / "profiles" / "demo" / "recordings"
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


def test_replays_are_deterministic():
    answers = recordings.by_category(recordings.read(RECORDINGS / "greedy.json.gz").answers)["tests"]
    costs = hardware.load("rtx-4090").costs
    first, second = (simulation.adaptive(answers, costs, greedy=True) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_a_real_recording_as_one_run():
    """On `m3-max` passes of 9 to 17 tokens cost the same, and shorter drafts do not pay."""
    answers = recordings.read(RECORDINGS.parents[1] / "recordings" / "qwen2.5-coder" / "greedy.json.gz").answers
    for name in hardware.names():
        costs = hardware.load(name).costs
        found = simulation.adaptive(answers, costs, True).tokens_per_s(costs)
        found /= simulation.alone(answers).tokens_per_s(costs)
        assert found >= (1.15 if name == "m3-max" else 0.993), (name, found)


def test_what_is_always_right_is_soon_drafted_long():
    """Nothing is known of the pair at first; the best fixed length knows that every token will stand."""
    text = Answer("text", 50, (0.9,) * 100, (True,) * 100, ((),) * 100)
    tallies = simulation.fixed([text] * 4).values()
    for name in hardware.names():
        costs = hardware.load(name).costs
        best = max(tally.tokens_per_s(costs) for tally in tallies)
        assert simulation.adaptive([text] * 4, costs, True).tokens_per_s(costs) >= 0.9 * best, name


# --- what `tune` predicts and says ---

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


@pytest.mark.slow
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


# --- the best fixed length, for engines that have no other ---

EVEN = Costs(Curve({1: 1.0}), Curve({1: 0.1, 17: 0.5}))
OURS, THEIRS = StaticPolicy((0.0,), rereads=False, rule="rejection"), StaticPolicy((0.0,), rereads=True, rule="match")


def written(pattern, confidence=0.9):
    stands = tuple(mark == "1" for mark in pattern)
    return Answer("text", 4, (confidence,) * len(stands), stands, tuple(() if ok else (0.5,) * 15 for ok in stands))


def test_where_all_stands_the_longest_is_best_until_rereading_costs_too_much():
    right = [written("1" * 170)]
    best = best_static(right, EVEN, True, OURS)
    assert best.tokens == 16 and best.speedup == pytest.approx(17 / 2.6, rel=0.1)
    rereading = best_static(right, EVEN, True, THEIRS)
    assert rereading.speedup < best.speedup
    dear = Costs(EVEN.verify, Curve({1: 0.1, 2: 0.2, 17: 9.0}))
    assert best_static(right, dear, True, THEIRS).tokens < best_static(right, dear, True, OURS).tokens


def test_where_nothing_stands_it_is_the_target_alone():
    best = best_static([written("0" * 80)], EVEN, True, THEIRS)
    assert (best.tokens, best.speedup) == (0, 1.0)
    assert best.alone_tokens_per_s == pytest.approx(1.0)


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
