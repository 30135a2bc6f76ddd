"""Several drafters in a row: who is asked, who learns what, and that the output stays the target's."""

from collections import Counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import Counting, FakeDraftModel, FakeTarget, ScriptedPolicy, Table, run, tokens_of
from timed import FLAT, auto

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft, Step, Token
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.chain_length import ChainLength
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.known_draft import KnownLength
from specdec_cli.drafters.chain import ChainDrafter
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.ngram import NgramDrafter

SAMPLED = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Scripted:
    """A drafter that proposes what it is told to, and notes what it hears."""

    def __init__(self, name, drafts):
        self.name, self.drafts, self.heard, self.prompts = name, list(drafts), [], []

    def start(self, prompt):
        self.prompts.append(tuple(prompt))
        return 0

    def propose(self, context, budget, policy):
        tokens = tuple(self.drafts.pop(0)[:budget]) if self.drafts else ()
        return Draft(tokens, None, self.name if tokens else "")

    def observe(self, step):
        self.heard.append((step.source, step.drafted, step.accepted, len(step.tokens)))


def model_over(table, sampling, draws=True):
    return ModelDrafter(FakeDraftModel(table), 10**6, StandardSampler(sampling), draws, np.random.default_rng(3))


def sources_of(events):
    return [event.source for event in events if isinstance(event, Step) and event.drafted]


def test_the_first_that_has_something_drafts():
    first, second = Scripted("a", [(2, 3), (), (8,)]), Scripted("b", [(5, 6)])
    events = run(FakeTarget(Counting()), (0,), ChainDrafter([first, second]), k=2, max_tokens=9)
    assert sources_of(events) == ["a", "b", "a"]
    assert tokens_of(events) == list(range(1, 10))


def test_a_later_one_reads_the_prompt_when_it_is_first_asked():
    first, second = Scripted("a", [(2,)]), Scripted("b", [(4,)])
    run(FakeTarget(Counting()), (0,), ChainDrafter([first, second]), k=1, max_tokens=6)
    assert (first.prompts, second.prompts) == ([(0,)], [(0,)])
    third = Scripted("b", [])
    run(
        FakeTarget(Counting()),
        (0,),
        ChainDrafter([Scripted("a", [(i,) for i in range(2, 9, 2)]), third]),
        k=1,
        max_tokens=8,
    )
    assert third.prompts == [], "nobody asked"


def test_each_hears_of_its_own_drafts_alone():
    first, second = Scripted("a", [(2, 3), ()]), Scripted("b", [(5, 99)])
    run(FakeTarget(Counting()), (0,), ChainDrafter([first, second]), k=2, max_tokens=8)
    assert first.heard[:2] == [("a", (2, 3), 2, 3), ("b", (), 0, 2)]
    assert second.heard[0] == ("b", (5, 99), 1, 2)


def test_a_model_left_behind_catches_up_without_decoding_anything_twice():
    target = Table(8, 3, order=1)
    drafter = ChainDrafter([NgramDrafter(), model_over(target.mixed(Table(8, 4, order=1), 0.4), SamplingSettings())])
    events = run(FakeTarget(target), (0, 1, 2), drafter, k=3, max_tokens=150)
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), (0, 1, 2), max_tokens=150))
    assert {"ngram", "model"} == set(sources_of(events))
    model = drafter._drafters[1]._model
    final = [0, 1, 2, *tokens_of(events)]
    right = [entry for entry in model.decoded if entry[0] < len(final) and final[entry[0]] == entry[1]]
    assert len(right) == len(set(right))


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("seed", [5, 6])
def test_sampled_output_has_the_targets_distribution(rule, seed):
    target, counts, n = Table(V, seed, order=1), Counter(), 2500
    draft = target.mixed(Table(V, seed + 1, order=1), 0.5)
    used = Counter()
    for i in range(n):
        model = ModelDrafter(
            FakeDraftModel(draft), V, StandardSampler(SAMPLED), rule == "rejection", np.random.default_rng(i + 10**6)
        )
        events = run(
            FakeTarget(target), (2, 3, 0, 1, 4, 2, 3, 0, 1, 2, 2, 3, 0, 1, 0, 2, 3, *PROMPT),
            ChainDrafter([NgramDrafter(), model]), 2,
            max_tokens=6, settings=SAMPLED, rule=rule, seed=i, enough=3,
        )  # fmt: skip
        used.update(sources_of(events))
        counts[tuple(tokens_of(events)[:3])] += 1
    assert min(used["ngram"], used["model"]) > n / 20, "the test means nothing unless both draft"
    assert p_value(counts, exact(target, SAMPLED, 3), n) > 1e-4


def test_each_policy_learns_from_its_own_drafter():
    policies = {"ngram": auto(FLAT), "model": auto(FLAT)}
    drafter = ChainDrafter([NgramDrafter(), model_over(Counting(), SamplingSettings())])
    events = run(FakeTarget(Counting()), (0, 1), drafter, policy=ChainLength(policies), max_tokens=60)
    assert tokens_of(events) == list(range(2, 62))
    assert set(sources_of(events)) == {"model"}, "nothing repeats itself in counting"
    assert policies["model"]._calibration.looks > 5 and policies["ngram"]._calibration.looks == 0
    assert Metrics.of(events).acceptance_rate > 0.9


class Noted(KnownLength):
    """Has the limits that it is told, and notes whose time it was that went by."""

    def __init__(self, limit):
        super().__init__(CostModel(FLAT, LONGEST))
        self.limits, self.own_time = limit, []

    def limit(self, room):
        return min(self.limits, room)

    def observe(self, step, own_time=True):
        self.own_time.append(own_time)


@pytest.mark.parametrize(
    ("limits", "whose"), [((4, 0), [True, False]), ((4, 4), [False, True]), ((0, 4), [False, True])]
)
def test_the_time_it_took_to_find_nothing_is_that_of_the_last_who_looked(limits, whose):
    first, last = (Noted(limit) for limit in limits)
    drafter = ChainDrafter([Scripted("a", []), Scripted("b", [])])
    run(FakeTarget(Counting()), (0,), drafter, policy=ChainLength({"a": first, "b": last}), max_tokens=5)
    assert [set(part.own_time) for part in (first, last)] == [{each} for each in whose]


def test_where_nobody_has_anything_to_decide_nobody_is_asked():
    class Untouched(Scripted):
        def propose(self, context, budget, policy):
            raise AssertionError("asked")

    parts = {name: Noted(0) for name in "ab"}
    drafter = ChainDrafter([Untouched(name, []) for name in "ab"])
    events = run(FakeTarget(Counting()), (0,), drafter, policy=ChainLength(parts), max_tokens=6)
    assert tokens_of(events) == [1, 2, 3, 4, 5, 6] and events[-1].notes == ()
    assert all(len(part.own_time) == 4 for part in parts.values()), (
        "each hears of every step between the first and the last"
    )


def test_a_rest_says_nothing_of_the_draft_before_it():
    policy = KnownLength(CostModel(FLAT, LONGEST))
    chained = ChainLength({"a": policy})
    chained.limit(9)
    chained.turn(0, True, 9)
    assert policy.choose([0.9] * 4) == 4
    policy._resting = 5
    for _ in range(3):
        chained.limit(9)
        assert chained.turn(0, True, 9) == (policy, 0)
        chained.observe(Step(1, (Token(1, "a", "plain"),), (), 0, (), "", 0.0, 0.01, 0.0, 0.01))
    assert policy.why == ""


def test_with_a_fixed_length_both_have_it():
    target = Table(8, 3, order=1)
    drafter = ChainDrafter([NgramDrafter(), model_over(target, SamplingSettings())])
    events = run(FakeTarget(target), (0, 1, 2), drafter, policy=ScriptedPolicy([3] * 200), max_tokens=80)
    assert max(len(event.drafted) for event in events if isinstance(event, Step)) == 3


def test_what_is_less_likely_right_than_wrong_is_left_to_the_next():
    class Unsure(Scripted):
        def propose(self, context, budget, policy):
            return super().propose(context, budget, policy) if policy.should_draft(0, 0.4) else Draft()

    first, second = Unsure("a", [(2,)] * 9), Scripted("b", [(2,), (4,)])
    run(FakeTarget(Counting()), (0,), ChainDrafter([first, second]), k=1, max_tokens=4)
    assert len(second.drafts) < 2 and len(first.drafts) == 9
    last = Unsure("a", [(2,), (4,)])
    run(FakeTarget(Counting()), (0,), ChainDrafter([Scripted("b", []), last]), k=1, max_tokens=4)
    assert len(last.drafts) < 2, "there is nobody to leave it to"


class Failing(NgramDrafter):
    """Breaks down when it is asked for the third time."""

    asked = 0

    def propose(self, context, budget, policy):
        self.asked += 1
        if self.asked == 3:
            raise RuntimeError("out of order")
        return super().propose(context, budget, policy)


class Silent(Failing):
    name = "silent"

    def observe(self, step):
        raise RuntimeError("deaf")


def test_one_that_fails_is_not_asked_again_and_the_others_go_on():
    target = Table(6, 3, order=1)
    prompt = (0, 1, 2, 0, 1, 2)
    own = tokens_of(run(FakeTarget(target), prompt, max_tokens=60))
    model = ModelDrafter(FakeDraftModel(target), 6, StandardSampler(SamplingSettings()), True, np.random.default_rng(0))
    for broken in (Failing(), Silent()):
        events = run(FakeTarget(target), prompt, ChainDrafter([broken, model]), k=3, max_tokens=60)
        assert tokens_of(events) == own and "the others went on" in events[-1].notes[0]
        assert {step.source for step in events if isinstance(step, Step) and step.index > 5} == {"model"}


def test_where_all_fail_the_target_goes_on_alone():
    events = run(FakeTarget(Counting()), (0,), ChainDrafter([Failing(), Silent()]), k=3, max_tokens=30)
    assert len(tokens_of(events)) == 30 and "went on alone" in events[-1].notes[0]
