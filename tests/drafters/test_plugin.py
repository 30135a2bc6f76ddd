"""What a drafter of a package may do wrong: whatever it is, the text is the target's own."""

import random
from functools import partial

import numpy as np
import pytest
from fakes import FakeDraftModel, FakeTarget, Table, run, steps_of, tokens_of
from faulty_drafters import NAME, RAISED, ROWS, TOKENS, Fault, drafter, fault, installed, raising, set_to

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft
from specdec_cli.drafters.drafter_context import DrafterContext

PROMPT = (0, 2, 1, 3, 0, 2)
TABLE = Table(8, 3, order=1)
PENALISED = SamplingOptions(repeat_penalty=1.3)
"""So that it shows if a drafter writes to the history that the target's sampler goes by."""
OWN = tokens_of(run(FakeTarget(TABLE), PROMPT, settings=PENALISED, max_tokens=24))


def answer(wrong, needs_model=False, model=None, way=NAME):
    """The events of an answer with a faulty drafter, whose context has all that the target's sampler has."""
    sampler = StandardSampler(PENALISED)
    context = DrafterContext(model, TABLE.n_vocab, sampler, False, np.random.default_rng(1))
    with installed(partial(drafter, OWN, len(PROMPT), wrong, needs_model)):
        names = drafters.split(way)
        made = drafters.create_cascade(names, [context] * len(names))
    return run(FakeTarget(TABLE), PROMPT, made, k=4, sampler=sampler, max_tokens=24)


def assert_own(events, about, way=NAME):
    """Returns how many drafted tokens were accepted."""
    assert tokens_of(events) == OWN, about
    assert all(len(note) < 300 and note.isprintable() and NAME in note for note in events[-1].notes), about
    assert len(events[-1].notes) <= 1 and {step.source for step in steps_of(events)} <= {"", *way.split("+")}, about
    assert all(type(token) is int for step in steps_of(events) for token in step.drafted), about
    return Metrics.of(events).accepted


COMBINED = ("ngram+faulty", "model<faulty", "faulty+ngram", "faulty+model", "model+faulty")


@pytest.mark.parametrize("way", [NAME, *(pytest.param(way, marks=pytest.mark.slow) for way in COMBINED)])
def test_every_kind_of_fault(way):
    accepted = []
    for seed in range(300):
        wrong = fault(random.Random(seed))
        if wrong.where != "load":
            accepted.append(assert_own(answer(wrong, model=FakeDraftModel(TABLE), way=way), wrong, way))
    assert sum(map(bool, accepted)) > len(accepted) / 2, "nothing shows where nothing is drafted"


HARMLESS = {
    **{f"rows {way}": Fault(way, "rows", ROWS[way]) for way in ("written", "scaled")},
    **{
        f"tokens as {way}": Fault(way, "propose", lambda draft, f=TOKENS[way]: Draft(f(draft.tokens)), instead=True)
        for way in ("numpy", "an array")
    },
}


@pytest.mark.parametrize("way", HARMLESS)
def test_rows_are_copies_and_numbers_may_be_of_numpy(way):
    events = answer(HARMLESS[way])
    assert assert_own(events, way) > 10 and events[-1].notes == ()


@pytest.mark.parametrize("name", ["KeyError", "exit code 0", "Speechless", "Strange"])
@pytest.mark.parametrize("where", ["create", "start", "propose", "observe", "rows"])
def test_whatever_it_raises_the_answer_goes_on_with_a_note(where, name):
    events = answer(Fault(name, where, raising(RAISED[name])))
    assert_own(events, name)
    assert "continued alone: " in events[-1].notes[0] and not events[-1].notes[0].endswith(": ")


def test_a_guess_has_the_text_so_far_as_its_history():
    context = DrafterContext(None, TABLE.n_vocab, StandardSampler(PENALISED), False, np.random.default_rng(1))
    with installed(partial(drafter, OWN, len(PROMPT), Fault("", "", None))):
        made = drafters.create(NAME, context)
    made.start(PROMPT)
    made.guess(PROMPT, (), 2)
    assert made._sampler._context == PROMPT


def test_an_interrupt_is_the_users():
    with pytest.raises(KeyboardInterrupt):
        answer(Fault("", "propose", raising(KeyboardInterrupt())))


@pytest.mark.parametrize("act", [raising(SystemExit(0)), lambda made: set_to(made, "form", "grown")])
def test_a_class_that_is_none_is_refused(act):
    with pytest.raises(UsageError, match=r"does not load: (SystemExit: 0|it is not a drafter)"):
        answer(Fault("", "load", act))


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.decode([], all_rows=True),
        lambda model: model.decode([1] * 33, all_rows=True),
        *(lambda model, n=n: model.decode([0, n]) for n in (-1, 8, 1.5)),
        lambda model: model.decode([1] * 5000),
        lambda model: model.grow([1] * 33, [-1] * 33),
        lambda model: model.grow([1, 2], [-1]),
        lambda model: model.grow([1, 2], [-1, -2]),
        lambda model: model.keep([0.5]),
        lambda model: set_to(model, "length", -1),
    ],
)
def test_a_draft_model_is_asked_for_nothing_that_ends_the_process(use):
    """`FakeDraftModel` asserts what llama.cpp would abort on."""
    given = []
    answer(Fault("", "create", given.append), True, FakeDraftModel(TABLE))
    model = given[0].model
    row = model.decode([1, 2])
    row[:] = 0
    assert model.decode([1, 2]).any() and model.length == 4
    with pytest.raises((TypeError, ValueError, AttributeError)):
        use(model)
    model.rewind(-5)
    assert model.length == 0
