"""Drafters of packages with every fault: at temperature 0 the text is the target's own, whatever they do."""

import json
import random

import pytest
from children import faulty
from driver import DRAFT, PROMPT, TARGET
from engines import open_session
from faulty_drafters import fault
from fuzzing import cases, in_child

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Step
from specdec_cli.measure.traces import read_trace

TOKENS = 24
SECONDS = 15
"""Of a command on a busy machine."""
WAYS = ("faulty", "faulty", "faulty", "faulty+ngram", "ngram+faulty", "faulty+model", "model+faulty", "model<faulty")
RUN = ("run", "-m", TARGET, "-md", DRAFT, "--raw", "-n", TOKENS)


@pytest.fixture(scope="module")
def answer():
    """The length of the prompt in tokens, and the target's own answer to it."""
    with open_session(drafter="none", max_tokens=TOKENS, ctx=256) as session:
        prompt = session.tokenize(PROMPT, raw=True)
        return len(prompt), Metrics.of(session.events(prompt, 1)).tokens


def says_no(text):
    """What a package's class says of itself can be refused before there is an answer."""
    return any(says in text for says in ("does not load", "cannot speed up", "only for another draft model"))


def test_without_a_fault_its_drafts_stand(answer):
    """Nothing shows where nothing is drafted. What would go wrong is never asked for."""
    seed = next(seed for seed in map(str, range(999)) if fault(random.Random(seed)).where == "forget")
    args = [*RUN, "-k", 4, "--drafter", "faulty", "--json", PROMPT]
    ended = in_child(faulty, seed, answer[1], answer[0], False, [*map(str, args)], seconds=SECONDS)
    assert json.loads(ended.out)["stats"]["accepted"] > TOKENS / 2


@cases(300)
def test_the_text_is_the_targets_own(answer, tmp_path, chance):
    prompt, own = answer
    seed, way, trace = str(chance.random()), chance.choice(WAYS), tmp_path / "run.jsonl"
    args = [*RUN, "-k", chance.choice((4, "auto")), "--drafter", way, "--trace", trace, "--json", PROMPT]
    args += ["--bitwise"] if chance.random() < 0.2 else []
    needs_model = "model" not in way and chance.random() < 0.5
    ended = in_child(faulty, seed, own, prompt, needs_model, [*map(str, args)], seconds=SECONDS)
    about = f"{fault(random.Random(seed)).about}, {way}, seed {seed}"
    ended.assert_sound(about, seconds=SECONDS)
    if ended.code:
        assert ended.code == 2 and says_no(ended.text), f"{about}\n{ended.text}"
        return
    answered = json.loads(ended.out)
    assert answered["tokens"] == own and len(answered["notes"]) <= 1, about
    for note in answered["notes"]:
        assert "faulty" in note and note.isprintable() and len(note) < 400, about
    steps = [event for event in read_trace(trace)[1] if isinstance(event, Step)]
    assert [token.id for step in steps for token in step.tokens] == own, about
    assert {step.source for step in steps} <= {"", *way.split("+")}, about
