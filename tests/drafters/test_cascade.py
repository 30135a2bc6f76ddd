"""Several drafters in a row: who is asked, who learns what, and what happens when one fails."""

from types import SimpleNamespace

from fakes import GREEDY, Counting, FakeTarget, ScriptedDrafter, Table, drafter_of, drafts_of, run, steps_of, tokens_of
from timed import FLAT, auto

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft, LengthPolicy, LengthReason, Step
from specdec_cli.draft_length.cascade_length import CascadeLength
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.cascade import CascadeDrafter
from specdec_cli.drafters.ngram import NgramDrafter


class Scripted(ScriptedDrafter):
    def __init__(self, name, drafts):
        super().__init__(drafts)
        self.name, self.prompts = name, []

    def start(self, prompt):
        self.prompts.append(tuple(prompt))
        return 0

    def heard(self):
        return [(step.source, step.drafted, step.accepted, len(step.tokens)) for step in self.observed]


def counted(*drafters, k=1, **options):
    """The events of a cascade whose target counts up from 1."""
    return run(FakeTarget(Counting()), (0,), CascadeDrafter(drafters), k, **options)


def sources_of(events):
    return [step.source for step in drafts_of(events)]


def test_the_first_that_has_something_drafts_and_each_hears_of_its_own_drafts_alone():
    first, second = Scripted("a", [(2, 3), (), (8,)]), Scripted("b", [(5, 99)])
    events = counted(first, second, k=2, max_tokens=9)
    assert sources_of(events) == ["a", "b", "a"] and tokens_of(events) == list(range(1, 10))
    assert first.heard()[:2] == [("a", (2, 3), 2, 3), ("b", (), 0, 2)]
    assert second.heard()[0] == ("b", (5, 99), 1, 2)
    assert (first.prompts, second.prompts) == ([(0,)], [(0,)])
    later = Scripted("b", [])
    counted(Scripted("a", [(i,) for i in range(2, 9, 2)]), later)
    assert later.prompts == [], "a later one reads the prompt when it is first asked"


class GoingOn(FixedLength):
    """Ends a draft with what the guide knows, after two tokens of the draft model."""

    extends = True

    def extend(self, drafted, confidences):
        return len(confidences) if drafted == 2 else 0


def test_a_draft_goes_on_in_a_passage_that_the_draft_model_reads_only_when_it_drafts_again():
    prompt = (*range(12, 30), 5)  # the answer counts up from 6, and from 12 on, the prompt shows what follows
    guide, drafter = drafter_of("ngram+model", Counting())._drafters
    guide.start(prompt)
    drafter.start(prompt)
    context, passes = (*prompt, *range(6, 19)), drafter._model.passes
    draft = drafter.propose(context, 8, GoingOn(8))
    assert draft.tokens == tuple(range(19, 27)) and draft.q is None
    read = sum(passes)
    drafter.observe(Step(1, (), draft.tokens, 7, (), "model", 0.0, 0.0, 0.0, 0.0))
    assert drafter.propose((*context, *range(19, 27)), 1, GoingOn(1)).tokens == (27,)
    assert sum(passes) - read == 7, "the last token of its own, and six of the passage"


def test_the_length_that_pays_goes_on_in_a_passage_that_promises_more():
    def extended(confidences):
        policy = auto(FLAT)
        policy.begin(1)
        assert policy.limit(30) and policy.should_draft(0, 0.9) and policy.should_read(1)
        return policy.extend(1, confidences)

    assert extended([0.97] * 10) == 10 and extended([0.97] * 3 + [0.001] * 5) == 3
    assert extended([]) == extended([0.2] * 10) == 0


def test_each_policy_learns_from_its_own_drafter():
    policies = {"ngram": auto(FLAT), "model": auto(FLAT)}
    drafter = drafter_of("ngram+model", Counting())
    events = run(FakeTarget(Counting()), (0, 1), drafter, policy=CascadeLength(policies), max_tokens=60)
    assert set(sources_of(events)) == {"model"}, "nothing repeats itself in counting"
    assert {step.why for step in drafts_of(events)} <= {LengthReason.WORTH_IT, LengthReason.UNSURE}
    assert policies["model"]._calibration.looks > 5 and policies["ngram"]._calibration.looks == 0
    assert Metrics.of(events).acceptance_rate > 0.9


class Resting(LengthPolicy):
    """Wants no draft, and counts what it is told."""

    why, observed, others = LengthReason.NOT_WORTH_IT, 0, 0

    def limit(self, room):
        return 0

    def observe(self, step, own_time=True):
        self.observed += 1

    def observe_others(self, steps, tokens):
        self.others += steps


def test_where_nobody_has_anything_to_decide_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(Scripted, "propose", None)
    parts = {name: Resting() for name in "ab"}
    events = counted(*(Scripted(name, []) for name in "ab"), policy=CascadeLength(parts), max_tokens=27)
    assert tokens_of(events) == list(range(1, 28)) and events[-1].notes == ()
    assert {step.why for step in steps_of(events)[1:]} == {LengthReason.NOT_WORTH_IT}
    # Of the 25 steps between the first and the last, every eighth; the others are told of in passing.
    assert all((part.observed, part.others) == (4, 21) for part in parts.values())


def test_what_is_less_likely_right_than_wrong_is_left_to_the_next():
    class Unsure(Scripted):
        asked = 0

        def propose(self, context, budget, policy):
            self.asked += 1
            return super().propose(context, budget, policy) if policy.should_draft(0, 0.4) else Draft()

    first = Unsure("a", [(2,)] * 9)
    assert sources_of(counted(first, Scripted("b", [(2,), (4,)]), max_tokens=4)) == ["b"] and first.asked
    last = Unsure("a", [(2,), (4,)])
    assert "a" in sources_of(counted(Scripted("b", []), last, max_tokens=4)), "there is nobody to leave it to"


def test_a_draft_that_a_constraint_forbids_is_passed_over_unless_it_was_drawn():
    constraint = SimpleNamespace(allowed=lambda tokens: int(9 not in tokens))
    for q, source in ((None, "b"), (lambda token: token, "a")):
        first = Scripted("a", [])
        first.propose = lambda *_, q=q: Draft((9,), q, "a")
        cascade = CascadeDrafter([first, Scripted("b", [(2,)])], constraint)
        assert cascade.propose((0,), 1, FixedLength(1)).source == source
    sampler = StandardSampler(GREEDY, constraint=constraint)
    assert drafter_of("ngram+model", Counting(), sampler)._allowed is constraint.allowed


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


def test_one_that_fails_is_not_asked_again_and_the_others_go_on_or_the_target_alone():
    target = Table(6, 3, order=1)
    prompt = (0, 1, 2, 0, 1, 2)
    own = tokens_of(run(FakeTarget(target), prompt, max_tokens=60))
    for broken in (Failing(), Silent()):
        events = run(FakeTarget(target), prompt, CascadeDrafter([broken, drafter_of("model", target)]), max_tokens=60)
        assert tokens_of(events) == own and "the others went on" in events[-1].notes[0]
        assert {step.source for step in steps_of(events) if step.index > 5} == {"model"}
    events = counted(Failing(), Silent(), k=3, max_tokens=30)
    assert len(tokens_of(events)) == 30 and "continued alone" in events[-1].notes[0]
