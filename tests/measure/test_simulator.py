"""The simulator's arithmetic, and `auto` where every token is right. tests/benchmarks has it on all recordings."""

from pathlib import Path

import pytest

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import hardware
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.simulate import Answer, replay

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
