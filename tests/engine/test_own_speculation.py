"""Drafters, rules and length policies that a program passes as objects."""

import numpy as np
import pytest
from driver import DRAFT, TARGET
from faulty_drafters import raising
from timed import FLAT, scaled

from specdec_cli import (
    Draft,
    DraftForm,
    LengthPolicy,
    SamplingParams,
    SpecdecError,
    SpeculativeConfig,
    UsageError,
    Verdict,
    compare,
    drafters,
    load,
)
from specdec_cli.decoding import rules

PROMPT = "def median(values):\n"
SHORT = SamplingParams(max_tokens=40)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
ALONE = SpeculativeConfig(drafter="none")


class Copying:
    """Proposes what followed the last token the last time."""

    def __init__(self, **about):
        self.began, self.seen = 0, []
        self.__dict__.update(about)

    def start(self, prompt):
        self.began += 1

    def propose(self, context, budget, policy):
        assert isinstance(context, tuple)
        for i in range(len(context) - 2, -1, -1):
            if context[i] == context[-1]:
                ahead = context[i + 1 : i + 1 + budget]
                return Draft(ahead[: policy.choose([0.9] * len(ahead))])
        return Draft()

    def observe(self, step):
        self.seen.append(step.accepted)


@pytest.fixture(scope="module")
def engine():
    with load(target=TARGET, draft=DRAFT, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def session(engine):
    return engine.session()


@pytest.mark.parametrize("sampling", [SHORT, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tokens", [3, "auto"])
def test_the_text_is_the_targets_own(session, sampling, tokens):
    mine = Copying()
    found = session.generate(PROMPT, sampling, SpeculativeConfig(drafter=mine, draft_tokens=tokens))
    assert found.tokens == session.generate(PROMPT, sampling, ALONE).tokens
    assert not found.notes and mine.began == 1 and len(mine.seen) > 3
    if tokens == 3:
        assert 0 < sum(mine.seen) <= found.metrics.accepted  # it doesn't see the last step
        assert set(found.metrics.sources) == {SpeculativeConfig(drafter=mine).drafter}


def test_only_propose_is_needed_and_it_takes_part_in_cascades(session, monkeypatch):
    """One that asks token by token need not declare what a token takes, either."""

    class Bare:
        def propose(self, context, budget, policy):
            return Draft((context[-1],) * min(budget, 2))

    name = SpeculativeConfig(drafter=Bare()).drafter
    assert name.startswith("Bare") and name in drafters.names()
    found = session.generate(PROMPT, SHORT, SpeculativeConfig(drafter=f"{name}+model", draft_tokens=3))
    assert found.tokens == session.generate(PROMPT, SHORT, ALONE).tokens and not found.notes
    assert set(found.metrics.sources) == {name}
    monkeypatch.setattr(session.costs, "verify", lambda text: scaled(FLAT, 0.0003).verify)
    mine = Copying(form=DraftForm.GROWN)
    assert not session.generate(PROMPT, SHORT, SpeculativeConfig(drafter=mine)).notes and mine.began


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"drafter": object()}, "no propose"),
        ({"drafter": Copying(name="a+b")}, "can't have the name"),
        ({"drafter": Copying(name="ngram")}, "can't have the name"),
        ({"accept": 5}, "not an acceptance rule"),
    ],
)
def test_what_is_no_drafter_or_rule_is_refused(what, says):
    with pytest.raises(UsageError, match=says):
        SpeculativeConfig(**what)


def test_a_rule_of_ones_own(session):
    def refusing(draft, rows, sampler, rng):
        return rules.RULES["match"](Draft(), rows, sampler, rng)

    def lossy(draft, rows, sampler, rng):
        return Verdict((), int(np.argmin(rows[0])), "plain", distance=1.0)

    config = SpeculativeConfig(drafter="model", draft_tokens=3, accept=refusing)
    found = session.generate(PROMPT, SHORT, config)
    assert found.tokens == session.generate(PROMPT, SHORT, ALONE).tokens
    assert found.metrics.drafted > 20 and found.metrics.accepted == 0 and found.lossless
    assert config.accept == SpeculativeConfig(accept=refusing).accept == "refusing"

    found = session.generate(PROMPT, SHORT, SpeculativeConfig(drafter="model", draft_tokens=3, accept=lossy))
    assert not found.lossless and found.metrics.distance_per_token > 0.9
    assert found.tokens != session.generate(PROMPT, SHORT, ALONE).tokens


def test_the_rule_of_an_object_has_one_name():
    """Though each access makes another method of it."""
    own = Copying()
    assert SpeculativeConfig(accept=own.propose).accept == SpeculativeConfig(accept=own.propose).accept


def test_a_length_policy_of_ones_own_is_neither_in_the_baseline_nor_in_the_record(engine, session):
    class Three(LengthPolicy):
        asked = 0

        def limit(self, room):
            self.asked += 1
            return min(room, 3)

    policy = Three()
    config = SpeculativeConfig(drafter="model", length_policy=policy)
    answer = session.start(PROMPT, SHORT, config, reuse=False)
    assert len([*answer]) > 5 and policy.asked
    assert {len(step.drafted) for step in answer.result.metrics.history[1:-3]} == {3}
    before, own = policy.asked, answer.alone()
    assert len([*own]) > 5 and policy.asked == before and own.result.tokens == answer.result.tokens
    result = compare(engine, [PROMPT], {"mine": config}, SamplingParams(max_tokens=8))
    assert result.to_json()["variants"][1]["name"] == "mine"


def test_they_are_compared_like_any_other(engine):
    def drawing_once_more(draft, rows, sampler, rng):
        rng.random()
        return rules.RULES["rejection"](draft, rows, sampler, rng)

    told = []
    ways = {
        "mine": SpeculativeConfig(drafter=Copying(), draft_tokens=3),
        "k=3": SpeculativeConfig(drafter="model", draft_tokens=3),
    }
    short, progress = SamplingParams(max_tokens=16), lambda done, count: told.append((done, count))
    result = compare(engine, [PROMPT, "class Stack:\n"], ways, short, progress=progress)
    assert [each.name for each in result.variants] == ["target alone", "mine", "k=3"]
    assert result.exactness["mine"]["identical"] + result.exactness["mine"]["rounding"] == 4
    assert told == [(number, 12) for number in range(1, 13)]
    page = result._repr_html_()
    assert page.startswith("<iframe") and "mine" in page and "target alone" in page

    sampled = SamplingParams(max_tokens=16, temperature=0.8)
    drawn = compare(engine, [PROMPT], {"coupled": SpeculativeConfig(accept="coupled", draft_tokens=3)}, sampled)
    assert [each.name for each in drawn.variants] == ["alone, accept=coupled", "coupled"]
    mixed = {str(rule): SpeculativeConfig(accept=rule, draft_tokens=3) for rule in (drawing_once_more, "match")}
    both = compare(engine, [PROMPT], mixed, sampled)
    assert both.exactness["match"]["wrong"] == 0, "the target alone draws as it always does"

    with pytest.raises(UsageError, match="no prompts"):
        compare(engine, [])
    with pytest.raises(UsageError, match="no variant can be named 'target alone'"):
        compare(engine, [PROMPT], {"target alone": SpeculativeConfig(drafter="ngram")})


def test_objects_with_like_names_are_not_mixed_up(session):
    made = [Copying(name="order-2"), Copying(name="order-2"), Copying(name="order"), Copying(name="order")]
    names = [SpeculativeConfig(drafter=each).drafter for each in made]
    assert len({*names}) == 4
    for each, name in zip(made, names, strict=True):
        session.generate(PROMPT, SHORT, SpeculativeConfig(drafter=name, draft_tokens=2))
        assert [own.began for own in made] == [int(own is each) for own in made]
        each.began = 0


def test_a_plain_class_gets_an_object_for_each_answer(engine):
    config = SpeculativeConfig(drafter=Copying, draft_tokens=2)
    found = engine.generate([PROMPT, "class Stack:\n"], SHORT, config)
    assert all(not each.notes and not each.error and each.metrics.drafted for each in found)
    own = SpeculativeConfig(drafter=Copying(), draft_tokens=2)
    for config in (own, SpeculativeConfig(drafter="model", length_policy=LengthPolicy())):
        with pytest.raises(UsageError, match="several answers"):
            engine.generate([PROMPT, PROMPT], SHORT, config)
        assert len(engine.generate([PROMPT, PROMPT], SHORT, config, parallel=1)) == 2


def test_what_a_rule_raises_is_the_error_of_that_answer(engine):
    for error in (ValueError("no"), SystemExit("no")):
        found = engine.generate([PROMPT, PROMPT], SHORT, SpeculativeConfig(drafter="ngram", accept=raising(error)))
        assert all(isinstance(each.error, SpecdecError) and "no" in str(each.error) for each in found)


def test_a_list_keeps_to_the_rule_that_the_engine_was_told():
    config = SpeculativeConfig(drafter="model", draft_tokens=2, accept="rejection")
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=12)
    with load(target=TARGET, draft=DRAFT, threads=1, speculative=config, sampling=sampling) as engine:
        (found,) = engine.generate([PROMPT])
        assert found.settings.accept == engine.generate(PROMPT).settings.accept == "rejection"
