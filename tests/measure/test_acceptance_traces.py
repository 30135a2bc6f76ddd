"""Recordings: what one says is what speculative runs then do; and as files, what comes back, and what is refused."""

import gzip
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from driver import DEMO, DRAFT, TARGET
from fakes import FakeDraftModel, Table, tokens_of
from prompts import PROMPTS
from scipy.special import chdtrc

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.engine.engine import one_session
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import suites
from specdec_cli.measure.acceptance_traces import Recording, before_a_loop, record
from specdec_cli.measure.simulate import AHEAD, Answer, by_category, replay
from specdec_cli.settings.settings import Settings

ANY = Costs(Curve({1: 0.0}), Curve({1: 0.0}))


@pytest.fixture(scope="module")
def session():
    settings = Settings(target=str(TARGET), draft=str(DRAFT), drafter="model", max_tokens=64, threads=1)
    with one_session(settings) as session:
        session.open(64)
        yield session


def steps_of(events):
    return [(len(event.drafted), event.accepted) for event in events if isinstance(event, Step)][1:]


def test_greedy_drafts_are_foretold_step_by_step(session):
    places = cut = 0
    for prompt in PROMPTS[8:13]:
        tokens = session.tokenize(prompt, raw=True)
        answer, own = record(session, tokens, session.settings, 0, "code")
        length = len(answer.accepted)
        places, cut = places + length, cut + (length < len(own))
        assert (answer.category, answer.prompt_tokens) == ("code", len(tokens))
        for stood, ahead in zip(answer.accepted, answer.after_rejection, strict=True):
            assert len(ahead) == (0 if stood else AHEAD - 1) and all(0 < sure <= 1 for sure in ahead)
        for k, min_p in ((3, 0.0), (3, 0.5), (16, 0.6)):
            run = replace(session.settings, draft_tokens=k, draft_min_p=min_p, max_tokens=length + 1)
            events = list(session.events(tokens, 0, settings=run))
            foretold = []
            tally = replay(FixedLength(k, min_p), [answer], ANY, foretold.append)
            shared = min(length + 1, len(own))
            assert tokens_of(events)[:shared] == own[:shared]
            assert steps_of(events) == [(len(step.drafted), step.accepted) for step in foretold]
            report = Metrics.of(events)
            tallied = tally.verified.total(), tally.drafted, tally.accepted
            assert (report.steps, report.drafted, report.accepted) == tallied
    assert places > 100 and 2 <= cut < 5  # some answers went into a loop, some on to their last token


LAST = 'if __name__ == "__main__":\n    unittest'
"""After which a file ends."""


def test_an_answer_is_recorded_up_to_its_end(session):
    lengths = set()
    for prompt in (f"{LAST}.main()\n", LAST):
        tokens = session.tokenize(prompt, raw=True)
        answer, own = record(session, tokens, session.settings, 0, "code")
        events = list(session.events(tokens, 0, settings=session.settings.alone()))
        assert events[-1].reason == "stop"
        # The end token is the last place; the first token of an answer, which no draft precedes, is none.
        assert len(answer.accepted) == len(own) == len(tokens_of(events)) - 1
        lengths.add(len(own))
    assert lengths == {0, 4}


def test_each_rule_draws_in_its_own_way(session):
    prompt = session.tokenize(PROMPTS[0], raw=True)

    def recorded(rule, seed):
        settings = replace(session.settings, temperature=0.8, accept=rule, max_tokens=24)
        return record(session, prompt, settings, seed, "code")

    coupled, tokens = recorded("coupled", 3)
    assert recorded("coupled", 3) == (coupled, tokens) != recorded("coupled", 4)
    rejection, _ = recorded("rejection", 3)
    assert rejection.accepted != coupled.accepted and len(rejection.accepted) > 0


class Unchanging(Table):
    """Whatever the text, the same logits."""

    def row(self, context):
        return super().row((0,))


class Proposals(FakeDraftModel):
    """A draft model that notes with which wrong tokens it is led astray."""

    def __init__(self, table):
        super().__init__(table)
        self.wrong, self.asked = [], False

    def begin_draft(self):
        self.asked = True

    def decode(self, tokens, all_rows=False):
        if self.asked:
            self.wrong.append(tokens[0])
        self.asked = False
        return super().decode(tokens, all_rows)


@pytest.mark.parametrize("rule", ["rejection", "match"])
def test_each_place_is_a_draw_from_the_draft_that_stands_as_often_as_the_rule_accepts(monkeypatch, rule):
    """On a target and a draft whose distributions never change: with rejection x has distribution q, and stands as
    often as sum(min(p, q)); with match it is the likeliest of q, and stands with its p. The target's tokens follow p.
    """
    monkeypatch.setattr(recordings, "AHEAD", 2)
    n, n_vocab = 3000, 6
    tables = Unchanging(n_vocab, 1), Unchanging(n_vocab, 3)
    target, draft = FakeDraftModel(tables[0]), Proposals(tables[1])
    settings = Settings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=n, accept=rule)
    opened = SimpleNamespace(model=SimpleNamespace(is_end=lambda token: False), open_kv=target)
    models = SimpleNamespace(target=opened, draft=SimpleNamespace(draft_model=draft))
    pair = SimpleNamespace(models=models, pair=SimpleNamespace(n_shared=n_vocab))
    monkeypatch.setattr(recordings, "before_a_loop", len)
    answer, own = record(pair, [0], settings, 1, "fake")
    p, q = (StandardSampler(SamplingOptions(1.0, 0, 1.0, 0.0)).categorical(table.row(())).probs for table in tables)
    share = np.minimum(p, q).sum() if rule == "rejection" else p[q.argmax()]
    assert 0.2 < share < 0.8
    assert abs(np.mean(answer.accepted) - share) < 4 * (share * (1 - share) / n) ** 0.5
    assert answer.confidence == pytest.approx([q.max()] * len(answer.accepted))
    following = np.array([*own[1:]])
    stood = [token for token, stands in zip(following, answer.accepted, strict=False) if stands]
    proposed = np.bincount([*draft.wrong, *stood], minlength=n_vocab)
    if rule == "match":
        assert proposed.argmax() == q.argmax() and proposed.max() == proposed.sum()
        return
    for counts, expected in ((proposed, q), (np.bincount(following, minlength=n_vocab), p)):
        total = counts.sum()
        assert total > n - 3
        assert chdtrc(n_vocab - 1, ((counts - total * expected) ** 2 / (total * expected)).sum()) > 1e-4


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0),
        ([1, 2, 3, *[7] * 40], 4),
        ([1, 2, 3, 4] * 2 + [1, 2, 3], 11),  # twice and a half
        ([*range(10), *[1, 2, 3, 4, 5] * 2, *[6, 7, 8, 9] * 3], 24),
        ([token for i in range(20) for token in (1, 2, 3, 100 + i)], 80),  # a word with a number that counts
    ],
)
def test_before_a_loop(tokens, expected):
    assert before_a_loop(tokens) == expected


# --- files ---

GOOD = {
    "format": 1,
    "greedy": True,
    "answers": [
        {"category": "code", "prompt_tokens": 9, "confidence": [500, 900], "stands": "10", "astray": [[100, 200]]}
    ],
}


def answer(rng, category="code", places=40):
    stands = tuple(rng.random() < 0.6 for _ in range(places))
    astray = tuple(() if stood else tuple(rng.random() for _ in range(AHEAD - 1)) for stood in stands)
    return Answer(category, rng.randrange(1, 500), tuple(rng.random() for _ in stands), stands, astray)


def changed(**changes):
    """A good file but for its answer."""
    return {**GOOD, "answers": [{**GOOD["answers"][0], **changes}]}


def test_a_recording_comes_back_up_to_three_digits(tmp_path):
    rng = random.Random(1)
    answers = (*(answer(rng) for _ in range(4)), Answer("sure", 3, (0.0, 1.0, 0.9996), (True, True, True), ((),) * 3))
    whole = Recording(False, answers, {"target": "t.gguf", "suite": "x"})
    recordings.write(tmp_path / "new" / "r.json.gz", whole)
    found = recordings.read(tmp_path / "new" / "r.json.gz")
    assert (found.greedy, found.about) == (False, whole.about)
    for before, after in zip(answers, found.answers, strict=True):
        assert replace(after, confidence=(), after_rejection=()) == replace(before, confidence=(), after_rejection=())
        assert after.confidence == pytest.approx(before.confidence, abs=0.0005)
        for some, same in zip(before.after_rejection, after.after_rejection, strict=True):
            assert same == pytest.approx(some, abs=0.0005)
    assert by_category(found.answers) == {"code": [*found.answers[:4]], "sure": [found.answers[4]]}
    recordings.write(tmp_path / "again.json.gz", found)
    assert recordings.read(tmp_path / "again.json.gz") == found
    assert (tmp_path / "again.json.gz").read_bytes()[4:8] == bytes(4), "the same bytes at any time"


def test_a_recording_of_other_models_is_refused(tmp_path):
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    target.write_bytes(b"12345")
    draft.write_bytes(b"123")
    about = recordings.identity(target, draft)
    Recording(True, (), about).require(target, draft)
    Recording(True, (), {}).require(target, draft)  # an older one, which does not say
    draft.write_bytes(b"1234")
    with pytest.raises(SpecdecError, match=r"another draft: draft\.gguf of 3 bytes, not draft\.gguf of 4"):
        Recording(True, (), about).require(target, draft)
    with pytest.raises(SpecdecError, match="another target"):
        Recording(True, (), {"target": "other.gguf"}).require(target, draft)


@pytest.mark.parametrize(
    "path",
    sorted(DEMO.parent.glob("**/recordings/**/*.json.gz")),
    ids=lambda path: "-".join(path.parts[-3:]),
)
def test_a_recording_that_comes_with_specdec(path):
    found, kind = recordings.read(path), path.name.removesuffix(".json.gz")
    edits = kind in ("edit", "edits")
    assert found.greedy is (edits or kind == "greedy") and path.stat().st_size < 50_000
    expected = set(suites.builtin()) - {"edits"}  # some of every other suite
    if edits or DEMO in path.parents:
        prompts = suites.load(kind if edits else "python")
        assert not edits or len(found.texts) == len(prompts)
        expected = {prompt.category for prompt in prompts}
    assert {each.category for each in (*found.answers, *found.texts)} == expected
    for answer in found.answers:
        assert answer.accepted and answer.prompt_tokens > 0 and max(answer.confidence) <= 1
        # Drafts go on after a wrong token as long as they please: what lies ahead of it must be known.
        lengths = [len(astray) for astray in answer.after_rejection]
        assert edits or lengths == [0 if stood else AHEAD - 1 for stood in answer.accepted]


SHAPES = {
    "another format": {**GOOD, "format": 2},
    "no answers": {**GOOD, "answers": []},
    "an answer lacks a part": {**GOOD, "answers": [{"category": "code", "stands": "10"}]},
    "fewer confidences": changed(confidence=[500]),
    "confidence is above 1": changed(confidence=[5, 1001]),
    "not one place": changed(confidence=[], stands="", astray=[]),
    "a text of no tokens": {**GOOD, "texts": [{"category": "edit", "prompt": [1], "tokens": []}]},
    "a token below 0": {**GOOD, "texts": [{"category": "edit", "prompt": [1], "tokens": [-1]}]},
}
DAMAGED = {
    "not gzip": b"PK\x03\x04" + bytes(100),
    "truncated": gzip.compress(json.dumps(GOOD).encode())[:-20],
    "a bit flipped": bytes(b ^ (i == 15) * 255 for i, b in enumerate(gzip.compress(json.dumps(GOOD).encode()))),
    "deep": gzip.compress(b"[" * 100_000),
    **{name: gzip.compress(json.dumps(data).encode()) for name, data in SHAPES.items()},
}


def refused(path):
    with pytest.raises(SpecdecError) as caught:
        recordings.read(path)
    assert path.name in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file(tmp_path, content):
    (tmp_path / "r.json.gz").write_bytes(content)
    refused(tmp_path / "r.json.gz")


def test_a_file_that_is_not_there_and_a_bomb_that_is_not_unpacked(tmp_path, monkeypatch):
    assert "cannot read" in refused(tmp_path / "none.json.gz")
    path = tmp_path / "r.json.gz"
    text = json.dumps(GOOD).encode()
    monkeypatch.setattr(recordings, "_MAX_BYTES", 10_000)
    path.write_bytes(gzip.compress(text.ljust(10_000)))
    assert recordings.read(path).greedy
    path.write_bytes(gzip.compress(text.ljust(10_001)))
    assert "too large" in refused(path)
    # Of five million bytes no more is read than the limit: the damage behind it is not even seen.
    whole = gzip.compress(text.ljust(5_000_000), 1)
    path.write_bytes(whole[: len(whole) // 2])
    assert "too large" in refused(path)
