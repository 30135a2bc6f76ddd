"""The law behind `-k auto`: when it drafts, how far, what it costs, what it may look at, and that no text changes."""

import itertools
import math
import pickle
import random
from dataclasses import asdict, replace

import msgspec
import numpy as np
import pytest
from exactness import PLAIN
from fakes import FakeTarget, Table, drafter_of, run, steps_of, tokens_of
from timed import FLAT, STEEP, Timed, auto, scaled

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import LengthReason, Step, Token
from specdec_cli.draft_length import DraftForm
from specdec_cli.draft_length import auto as planning
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import BINS, Calibration, SiblingCalibration, outcomes
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.loss_budget import START, LossBudget
from specdec_cli.draft_length.optimal_stopping import solve, solve_steady
from specdec_cli.measure import hardware
from specdec_cli.measure.simulate import Answer, alone, replay

REPLAYED = Curve({1: 0.0041, 2: 0.0045, 3: 0.0047, 4: 0.0050, 5: 0.0059})
REPLAYS = Costs(Curve({1: 0.0041, 2: 0.0058, 3: 0.0064, 4: 0.0068, 17: 0.0110}), Curve({1: 0.0013}), repeated=REPLAYED)
"""A GPU that plans passes anew and replays those of one size."""

TARGET, NOISE = Table(40, 1, order=1), Table(40, 2, order=1)


def answer(places, prompt=50):
    """places: (confidence, stands) each."""
    confidences, verdicts = zip(*places, strict=True)
    return Answer("text", prompt, confidences, verdicts, tuple(() if stands else (0.5,) * 15 for stands in verdicts))


def code(rng, n):
    """A draft that knows what it writes."""
    found = [min(rng.betavariate(3, 0.8), 0.995) for _ in range(n)]
    return [(confidence, rng.random() < min(0.98, confidence + 0.1)) for confidence in found]


def prose(rng, n):
    """A draft that is unsure and mostly wrong."""
    return [(rng.betavariate(1, 4), rng.random() < 0.05) for _ in range(n)]


def replayed(policy, costs, text):
    """The steps of a replay, each with the number of tokens before it."""
    found = []
    replay(policy, [text], costs, found.append)
    places = itertools.accumulate((step.accepted + 1 for step in found), initial=1)
    return list(zip(places, found, strict=False))


def drafted(policy, costs, text):
    """The draft lengths of a replay."""
    return [len(step.drafted) for _, step in replayed(policy, costs, text)]


@pytest.mark.parametrize(("costs", "confidence"), [(FLAT, 0.3), (FLAT, 0.99), (STEEP, 0.9), (STEEP, 0.99)])
def test_a_draft_that_is_always_wrong_costs_little(costs, confidence):
    text = answer([(confidence, False)] * 400)
    lost = replay(auto(costs), [text], costs).seconds(costs) / alone([text]).seconds(costs) - 1
    assert 0 <= lost < 0.03


def test_a_perfect_draft_reaches_the_longest_length_within_five_steps():
    lengths = drafted(auto(), FLAT, answer([(0.99, True)] * 300))
    assert LONGEST in lengths[:5]
    assert {length for length in lengths[5:-1] if length} == {LONGEST}


def test_a_perfect_draft_is_not_kept_short_for_long_where_short_ones_repeat():
    lengths = drafted(auto(REPLAYS), REPLAYS, answer([(0.99, True)] * 900))
    assert LONGEST in lengths[:20] and lengths.count(LONGEST) > 0.5 * len(lengths)


def test_a_jump_in_the_curve_is_looked_past():
    """No single token pays where the second row doubles the cost, but several together do."""
    jump = Costs(Curve({1: 0.010, 2: 0.0195, 17: 0.022}), Curve({1: 0.0005}))
    assert max(drafted(auto(jump), jump, answer([(0.98, True)] * 300))) == LONGEST


def speed(steps, costs, first, last):
    """Tokens per second of the steps that begin between two places."""
    chosen = [step for at, step in steps if first <= at < last]
    seconds = sum(step.draft_s + step.verify_s + costs.other for step in chosen)
    return sum(step.accepted + 1 for step in chosen) / seconds


FASTER = Costs(
    Curve({1: 0.0048, 2: 0.00515, 3: 0.0056, 4: 0.0061, 5: 0.0067, 8: 0.0086, 9: 0.009, 12: 0.0091, 17: 0.0101}),
    Curve({1: 0.0013, 2: 0.00145, 4: 0.0016, 8: 0.0022, 32: 0.003, 512: 0.01}),
    0.0001,
)
"""Costs of a GPU on which a second token costs less than on an H200."""


def costs_of(name):
    return FASTER if name == "faster" else hardware.load(name).costs


@pytest.mark.parametrize(
    ("name", "least", "worst"),
    [("faster", 0.93, 0.95), ("rtx-4090", 0.93, 0.95), ("laptop-8core", 0.93, 0.95), ("h200", 0.76, 0.94)],
)
def test_adapts_within_thirty_tokens_of_a_change(name, least, worst):
    """From 30 tokens after a change on, it is nearly as fast as one that has seen no other kind of text, unless drafts
    gain little: then they may lose little to find out.
    """
    costs = costs_of(name)
    rng = random.Random(0)
    parts = [code(rng, 300), prose(rng, 300), code(rng, 300)]
    changing = replayed(auto(costs), costs, answer([place for part in parts for place in part]))
    for i, (kind, part) in enumerate(zip((code, prose, code), parts, strict=True)):
        settled = replayed(auto(costs), costs, answer(kind(random.Random(99), 300) + part))
        ratio = speed(changing, costs, 300 * i + 30, 300 * i + 300) / speed(settled, costs, 330, 600)
        assert ratio > (least if i else 0.85), (i, ratio)  # the first part begins with nothing known
    assert speed(changing, costs, 330, 600) > worst / (costs.verify(1) + costs.other)


@pytest.mark.parametrize(("name", "gain"), [("faster", 1.2), ("rtx-4090", 1.2), ("laptop-8core", 1.2), ("h200", 1.1)])
def test_an_answer_with_bad_drafts_does_not_end_drafting_in_the_next_ones(name, gain):
    costs, rng = costs_of(name), random.Random(1)
    policy = auto(costs)
    assert sum(drafted(policy, costs, answer(prose(rng, 300)))[-100:]) < 20
    texts = [answer(code(rng, 300), prompt=340) for _ in range(3)]
    fresh, *gained = (
        alone([text]).seconds(costs) / replay(each, [text], costs).seconds(costs)
        for each, text in ((auto(costs), texts[0]), *((policy, text) for text in texts))
    )
    assert max(gained) > 0.9 * fresh > gain, gained


def test_more_may_be_lost_at_first_where_a_gpu_plans_passes_anew():
    assert DraftForm.GROWN.budget(plans=True).left > DraftForm.GROWN.budget().left > DraftForm.KNOWN.budget().left


@pytest.mark.parametrize("cheaper", [True, False])
def test_where_a_gpu_replays_passes_drafts_have_one_length(cheaper):
    """If it turns out that it doesn't, they end where they are unsure, as elsewhere."""
    rng = random.Random(3)
    text = answer([(rng.uniform(0.35, 0.95), rng.random() < 0.65) for _ in range(600)])
    costs = REPLAYS if cheaper else replace(REPLAYS, repeated=None)
    lengths = drafted(auto(REPLAYS, greedy=False), costs, text)
    alike = sum(length == before > 0 for before, length in itertools.pairwise(lengths)) / len(lengths)
    assert alike > 0.8 if cheaper else alike < 0.2


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.65, 0.9])
def test_with_one_confidence_the_best_plan_has_one_length(rate):
    verify = [0.0, REPLAYS.verify(1), *map(REPLAYED, range(2, 6))]
    best = solve([rate], [1.0], verify, 0.0013, 0.0001, 0.0, rounds=20)
    steady, slower = (solve_steady(best, rate, verify, 0.0013, last, 0.0001) for last in (0.0, 0.002))
    assert steady.throughput == pytest.approx(best.throughput, rel=0.02) and steady.alone == best.alone
    assert steady.drafts is best.drafts is (rate > 0.1) and steady.gain == pytest.approx(best.gain, abs=2e-4)
    assert [*map(bool, steady.add)] == sorted(map(bool, steady.add)) and steady.steady is steady.drafts
    assert slower.gain < steady.gain if rate > 0.1 else slower == steady


def test_passes_like_those_before_them_have_costs_of_their_own():
    model = CostModel(REPLAYS, LONGEST)
    for index, length in enumerate([2, 3, 2, 3] * 20):
        model.observe(Step(index, (), (0,) * length, 0, (), "", 0.003, 0.008, 0.0, 0.0), 1, length)
    assert model.verify(3) == pytest.approx(0.008, rel=0.05) and model.repeated(1.0)[3] != pytest.approx(0.008, rel=0.2)
    for index in range(80):
        model.observe(Step(index, (), (0, 0), 0, (), "", 0.003, 0.005, 0.0, 0.0), 1, 2)
    assert model.repeated(1.0)[3] == pytest.approx(0.005, rel=0.05)
    assert model.repeated(0.5)[3] == pytest.approx((model.repeated(1.0)[3] + model.verify(3)) / 2)
    assert CostModel(FLAT, LONGEST).repeated(1.0) == []


def test_wider_passes_than_were_repeated_to_time_them_teach_nothing_about_these():
    model = CostModel(REPLAYS, LONGEST)
    for index in range(60):
        model.observe(Step(index, (), (0,) * 16, 16, (), "", 0.02, REPLAYS.verify(17), 0.0, 0.0), 1, 16)
    assert [model.verify(n) for n in (1, 17)] == pytest.approx([REPLAYS.verify(n) for n in (1, 17)])
    assert model.repeated(1.0)[3] == pytest.approx(REPLAYED(3))


def test_a_draft_that_is_bad_in_every_answer_costs_little():
    costs, rng = hardware.load("rtx-4090").costs, random.Random(2)
    policy, texts = auto(costs), [answer(prose(rng, 100)) for _ in range(8)]
    seconds = [replay(policy, [text], costs).seconds(costs) / alone([text]).seconds(costs) for text in texts]
    assert max(seconds) < 1.05 and sum(seconds) / len(seconds) < 1.02


def test_reading_a_long_prompt_must_be_worth_it():
    """A draft model as slow at reading as at writing is not fetched for a few tokens' sake."""
    slow_reader = Costs(FLAT.verify, Curve({1: 0.001, 512: 0.5}))
    for prompt, drafts in ((4000, False), (4, True)):
        policy, others = auto(slow_reader), (Token(1, "", "forced"),) * 5000
        policy.observe(Step(1, others, (), 0, (), "", 0.0, 0.01, 0.0, 0.0))  # in another answer
        assert any(drafted(policy, slow_reader, answer([(0.9, True)] * 20, prompt))) == drafts
    places = [
        place
        for place, step in replayed(auto(slow_reader), slow_reader, answer([(0.9, True)] * 3000, 4000))
        if step.drafted
    ]
    assert places and places[0] > 400, "a long answer may be as long again"


def test_a_draft_of_one_token_is_charged_one_pass():
    """Where a step isn't timed because it has read forced tokens."""
    costs, budget = Costs(FLAT.verify, Curve({1: 0.008})), LossBudget()
    policy = AutoLength(CostModel(costs, LONGEST), Calibration.prior(True), budget=budget)
    policy.should_draft(0, 0.9)
    policy.observe(Step(1, (), (0,), 1, (), "", 0.0, 0.0, 0.0, 0.0, unread=2))
    assert budget.left > START


def test_probes_are_rare_and_say_so():
    steps = [step for _, step in replayed(auto(), FLAT, answer([(0.98, True)] * 6000))]
    probes = [step for step in steps[:-1] if not step.drafted]
    assert 0 < len(probes) < 0.08 * len(steps)
    assert {step.why for step in probes} == {LengthReason.BASELINE}


def test_the_costs_follow_what_is_seen():
    """The machine turns out to be one on which checking is dear: drafting ends, whatever calibration said."""
    policy = Timed(STEEP, policy=auto(FLAT))
    lengths = drafted(policy, FLAT, answer([(0.7, i % 3 != 0) for i in range(900)]))
    assert any(lengths[:10]) and sum(map(bool, lengths[-200:])) < 8


def test_one_hiccup_of_the_machine_changes_little():
    model = CostModel(FLAT, LONGEST)
    before = [model.verify(n) for n in range(1, LONGEST + 2)]
    model.observe(Step(1, (), (0, 0), 2, (), "", 0.001, 5.0, 0.0, 1.0), 1, 2)
    assert max(model.verify(n) / then for n, then in enumerate(before, 1)) < 1.12


@pytest.mark.parametrize("drafted", [False, True])
def test_the_first_plain_steps_after_a_draft_say_nothing(drafted):
    """Where a draft came between, two of them cost more than what the target alone does."""
    model = CostModel(FLAT, LONGEST)
    for i in range(30):
        if drafted and i % 3 == 0:
            model.observe(Step(2 * i, (), (0,), 0, (), "", 0.001, FLAT.verify(2), 0.0, 0.0), 1, 1)
        model.observe(Step(2 * i + 1, (), (), 0, (), "", 0.0, 0.010 if i % 3 == 2 else 0.014, 0.0, 0.0), 0, 0)
    assert (model.verify(1) == pytest.approx(0.010, rel=0.01)) is drafted


def test_costs_of_a_slow_machine_do_not_stay_where_nothing_is_drafted():
    model = CostModel(scaled(FLAT, 2.5 * FLAT.verify(1)), LONGEST)
    for i in range(300):
        model.observe(Step(i, (), (), 0, (), "", 0.0, FLAT.verify(1), 0.0, float(i)), 0, 0)
    assert model.verify(1) == pytest.approx(FLAT.verify(1), rel=0.01)
    assert model.verify(8) < 1.25 * FLAT.verify(8) and model.draft() < 1.45 * FLAT.draft(1)


def test_a_growing_context_raises_the_whole_curve():
    model = CostModel(FLAT, LONGEST)
    for i in range(600):
        seconds = 0.010 * (1 + min(max(i - 100, 0) / 400, 1))
        model.observe(Step(i, (), (), 0, (), "", 0.0, seconds, 0.0, float(i)), 1, 0)
    assert model.verify(1) == pytest.approx(0.020, rel=0.05)
    assert 0.016 < model.verify(8) < 0.030


def test_plans_are_rare_and_the_state_does_not_grow(monkeypatch):
    """A plan takes some 0.15 ms, all else microseconds."""
    text, plans, policy = code(random.Random(2), 3000), [], auto()
    monkeypatch.setattr(planning, "solve", lambda *arguments: plans.append(1) or solve(*arguments))
    replay(policy, [answer(text[:500])], FLAT)
    before = len(pickle.dumps(policy))
    tally = replay(policy, [answer(text)], FLAT)
    assert len(plans) < 0.2 * tally.verified.total()
    assert len(pickle.dumps(policy)) < 1.1 * before


def resembling(policy, share=0.3, seed=1, max_tokens=60, target=TARGET):
    """The events of an answer with a draft model that resembles the target, and that drafter."""
    sampler = StandardSampler(PLAIN)
    drafter = drafter_of("model", TARGET.mixed(NOISE, share), sampler, rng=np.random.default_rng(seed))
    return run(FakeTarget(target), (1, 2), drafter, max_tokens=max_tokens, sampler=sampler, policy=policy), drafter


def test_never_looks_at_the_target_of_the_same_step():
    """Two targets that agree until a step differ in what they say of its draft; the drafts are the same."""
    turn, other, turning = 30, Table(40, 9, order=1), Table(40, 0)
    turning.row = lambda context: (TARGET if len(context) < turn else other).row(context)
    plain, turned = (steps_of(resembling(Timed(greedy=False), target=target)[0]) for target in (TARGET, turning))
    length, compared = 2, 0
    for one, two in zip(plain, turned, strict=False):
        assert one.drafted == two.drafted
        compared += bool(one.drafted)
        if length + len(one.drafted) + 1 >= turn:  # this step's verdict is the first that may differ
            break
        length += len(one.tokens)
    assert compared > 3
    assert plain != turned


def test_a_draft_left_behind_is_never_wrong_about_where_it_is():
    """Idle steps, reading on, drafting again: every token is decoded at its own place, and none twice. Drafting pays
    here, or does not, as the text goes; reading on is cheap.
    """
    policy = Timed(Costs(Curve({1: 0.010, 17: 0.060}), Curve({1: 0.0025, 512: 0.010})), greedy=False)
    heard, learn = [], policy.policy.observe_counterfactual
    policy.policy.observe_counterfactual = lambda *found: (heard.append(found), learn(*found))
    events, drafter = resembling(policy, 0.5, seed=0, max_tokens=2000)
    text, model = (1, 2, *tokens_of(events)), drafter._model
    assert tuple(model._cache) == text[: model.length]
    right = [read for read in model.read if text[: len(read)] == read]
    assert len(right) == len(set(right))
    assert policy.drafted.count(0) > 100 and len(heard) > 40 and sum(map(bool, policy.drafted)) > 10
    # What observe_counterfactual says of a place is what the draft would have done there: on the average, the overlap.
    overlaps = []
    for end in range(2, len(text)):
        p, q = (drafter._sampler.categorical(table.row(text[:end])) for table in (TARGET, model._table))
        overlaps.append(np.minimum(p.probs, q.probs).sum())
    assert abs(np.mean([outcome for _, outcome in heard]) - np.mean(overlaps)) < 0.1


DAMAGED = {"offset": math.nan, "slope": -1e9, "variance": -1.0, "looks": -5, "seen": None}
BINNED = [("counts", [1.0]), ("counts", [math.inf] * BINS), ("accepted", [-16.0] * BINS), ("accepted", [1e8] * BINS)]


@pytest.mark.parametrize(
    ("name", "value"), [*DAMAGED.items(), *BINNED, ("seen", [1.0] * BINS), ("seen", [-1.0, 2.0, *[0.0] * (BINS - 2)])]
)
def test_a_damaged_calibration_is_refused(name, value):
    with pytest.raises(ValueError, match=r"not a calibration|Expected"):
        msgspec.convert({**asdict(Calibration.prior(True)), name: value}, Calibration)


# What is learned of a tree: of each token that was put to the test, and of no other


def tried(drafted, accepted, parents=None, path=None):
    return Step(1, (), tuple(range(drafted)), accepted, (), "model", 0.1, 0.1, 0.0, 1.0, "", parents, path)


TREE = (-1, -1, 0, 0, 1, 2)


@pytest.mark.parametrize(
    ("parents", "path", "stand", "fall"),
    [
        *((None, None, [*range(n)], [n] if n < 3 else []) for n in range(4)),  # chains of three tokens
        *((TREE, (), [], [0, 1]), (TREE, (0,), [0], [2, 3]), (TREE, (1,), [1], [0, 4])),
        *((TREE, (0, 3), [0, 3], [2]), (TREE, (0, 2), [0, 2], [5]), (TREE, (0, 2, 5), [0, 2, 5], [])),
    ],
)
def test_what_was_tried_stands_or_falls_and_the_rest_tells_nothing(parents, path, stand, fall):
    """Siblings are tried in their order, up to the one that stands."""
    step = tried(len(parents or range(3)), len(stand), parents, path)
    assert outcomes(step) == sorted([(node, True) for node in stand] + [(node, False) for node in fall])
    assert list(outcomes(tried(0, 0))) == []


def test_each_rank_learns_for_itself():
    ranks = SiblingCalibration(Calibration(0.0, 1.0), greedy=True)
    before = [ranks.rate(rank, 0.5) for rank in (0, 1, 2)]
    for _ in range(40):  # the first never stands, the second always does, the third is never tried
        ranks.drafted.clear()
        for rank in (0, 1, 2):
            ranks.add(rank, 0.5)
        ranks.learn(tried(3, 1, (-1, -1, -1), (1,)))
    after = [ranks.rate(rank, 0.5) for rank in (0, 1, 2)]
    assert after[0] < before[0] - 0.2 and after[1] > before[1] + 0.2 and after[2] == before[2]
    ranks.drafted.clear()
    ranks.learn(tried(1, 0, (-1,), ()))
    assert ranks.rate(0, 0.5) == after[0], "of a draft of somebody else's nothing is learned"
