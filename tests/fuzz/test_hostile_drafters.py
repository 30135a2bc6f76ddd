"""Drafters of packages with every fault: at temperature 0 the text is the target's own, whatever they do."""

import json
import random
from dataclasses import replace
from functools import partial

import faulty_drafters
import pytest
from driver import DRAFT, PROMPT, TARGET
from engines import open_session
from fuzzing import cases, in_child

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Step
from specdec_cli.measure.traces import event_json, read_trace

pytestmark = pytest.mark.fuzz

TOKENS = 24
SECONDS = 15
"""Of a command on a busy machine."""
WAYS = ("faulty", "faulty", "faulty", "faulty+ngram", "ngram+faulty", "faulty+model", "model+faulty", "model<faulty")
SHARDS = pytest.mark.parametrize("shard", range(4))


@pytest.fixture(scope="module")
def session():
    with open_session(ways=[{"drafter": "model", "bitwise": False}], drafter="model", ctx=256) as session:
        yield session


@pytest.fixture(scope="module")
def answer(session):
    """The prompt's tokens, and the target's own answer to them."""
    prompt = session.tokenize(PROMPT, raw=True)
    alone = replace(session.settings, drafter="none", max_tokens=TOKENS)
    return prompt, Metrics.of(session.events(prompt, 1, settings=alone)).tokens


def says_no(text):
    """What a package's class says of itself can be refused before there is an answer."""
    return any(says in text for says in ("does not load", "cannot speed up", "only for another draft model"))


def assert_told(notes, about):
    assert len(notes) <= 1, about
    for note in notes:
        assert "faulty" in note and note.isprintable() and len(note) < 400, about


@SHARDS
def test_the_text_is_the_targets_own(session, answer, shard):
    prompt, own = answer
    drafted = 0
    for chance in cases(50, f"drafters/{shard}"):
        wrong, way, k = faulty_drafters.fault(chance), chance.choice(WAYS), chance.choice((4, 4, "auto"))
        about = f"{wrong.about} in call {wrong.after}, {way}, -k {k}"
        options = {"draft_tokens": k, "max_tokens": TOKENS, "bitwise": chance.random() < 0.2}
        with faulty_drafters.installed(partial(faulty_drafters.drafter, own, len(prompt), wrong)):
            try:
                settings = replace(session.settings, drafter=way, **options)
                events = list(session.events(prompt, 1, settings=settings))
            except UsageError as error:
                assert wrong.where == "load" and says_no(str(error)), about
                continue
        metrics = Metrics.of(events)
        assert metrics.tokens == own and metrics.reason == "length", about
        assert_told(events[-1].notes, about)
        assert {step.source for step in metrics.history} <= {"", *way.split("+")}, about
        json.dumps([event_json(event) for event in events])
        drafted += metrics.accepted
    assert drafted > 50, "nothing shows where nothing is drafted"


@SHARDS
def test_with_json_and_a_trace(answer, tmp_path, shard):
    prompt, own = answer
    answered = 0
    for number, chance in enumerate(cases(50, f"drafters by command/{shard}")):
        seed, way, trace = str(chance.random()), chance.choice(WAYS), tmp_path / f"{number}.jsonl"
        args = ["run", "-m", TARGET, "-md", DRAFT, "--raw", "-n", TOKENS, "-k", chance.choice((4, "auto"))]
        args += ["--drafter", way, "--trace", trace, "--json", PROMPT]
        needs_model = "model" not in way and chance.random() < 0.5
        ended = in_child(faulty_drafters.main, seed, own, len(prompt), needs_model, [*map(str, args)], seconds=SECONDS)
        about = f"{faulty_drafters.fault(random.Random(seed)).about}, {way}, seed {seed}"
        ended.assert_sound(about, seconds=SECONDS)
        if ended.code:
            assert ended.code == 2 and says_no(ended.text), f"{about}\n{ended.text}"
            continue
        told = json.loads(ended.out)
        assert told["tokens"] == own, about
        assert_told(told["notes"], about)
        _, events = read_trace(trace)
        assert [token.id for step in events if isinstance(step, Step) for token in step.tokens] == own, about
        answered += 1
    assert answered > 0
