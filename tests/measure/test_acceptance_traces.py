"""Recordings as files: what comes back, and what is refused."""

import gzip
import json
import random
from dataclasses import replace

import pytest
from driver import DEMO

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import suites
from specdec_cli.measure.acceptance_traces import Recording
from specdec_cli.measure.simulate import AHEAD, Answer

BUNDLED = DEMO.parent
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
        assert replace(after, confidence=(), astray=()) == replace(before, confidence=(), astray=())
        assert after.confidence == pytest.approx(before.confidence, abs=0.0005)
        for some, same in zip(before.astray, after.astray, strict=True):
            assert same == pytest.approx(some, abs=0.0005)
    assert recordings.by_category(found.answers) == {"code": [*found.answers[:4]], "sure": [found.answers[4]]}
    recordings.write(tmp_path / "again.json.gz", found)
    assert recordings.read(tmp_path / "again.json.gz") == found
    assert (tmp_path / "again.json.gz").read_bytes()[4:8] == bytes(4), "the same bytes at any time"


def test_a_recording_of_other_models_is_refused(tmp_path):
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    target.write_bytes(b"12345")
    draft.write_bytes(b"123")
    about = recordings.identity(target, draft)
    assert about == {"target": "target.gguf", "draft": "draft.gguf", "target_bytes": 5, "draft_bytes": 3}
    Recording(True, (), about).require(target, draft)
    Recording(True, (), {}).require(target, draft)  # an older one, which does not say
    draft.write_bytes(b"1234")
    with pytest.raises(SpecdecError, match=r"another draft: draft\.gguf of 3 bytes, not draft\.gguf of 4") as refused:
        Recording(True, (), about).require(target, draft)
    assert "tune" in refused.value.hint
    with pytest.raises(SpecdecError, match="another target"):
        Recording(True, (), {"target": "other.gguf"}).require(target, draft)


@pytest.mark.parametrize(
    "path", sorted((BUNDLED / "recordings").glob("*/*.json.gz")), ids=lambda path: f"{path.parent.name} {path.name}"
)
def test_the_recordings_of_real_models(path):
    recording = recordings.read(path)
    categories = {found.category for found in (*recording.answers, *recording.texts)}
    if (suite := path.name.removesuffix(".json.gz")) in ("edit", "edits"):
        assert recording.greedy and len(recording.texts) == len(suites.load(suite))
        assert categories == {prompt.category for prompt in suites.load(suite)}
    else:
        assert recording.greedy is (path.name == "greedy.json.gz")
        assert categories == set(suites.builtin()) - {"edits"}, "some of every other suite"
    assert path.stat().st_size < 50_000


@pytest.mark.parametrize("kind", ["greedy", "rejection"])
def test_the_bundled_recordings(kind):
    found = recordings.read(DEMO / "recordings" / f"{kind}.json.gz")
    assert found.greedy == (kind == "greedy")
    assert sum(len(answer.stands) for answer in found.answers) > 3000 and len(recordings.by_category(found.answers)) > 2
    for answer in found.answers:
        assert answer.stands and answer.prompt_tokens > 0 and max(answer.confidence) <= 1
        # Drafts go on after a wrong token as long as they please: what lies ahead of it must be known.
        assert all(len(astray) == (0 if stood else AHEAD - 1) for stood, astray in zip(answer.stands, answer.astray))  # noqa: B905


SHAPES = {
    "another format": {**GOOD, "format": 2},
    "no answers": {"format": 1, "greedy": True},
    "an answer lacks a part": {**GOOD, "answers": [{"category": "code", "stands": "10"}]},
    "fewer confidences": changed(confidence=[500]),
    "stands are numbers": changed(stands=[1, 0]),
    "confidence is not a number": changed(confidence=[float("nan"), 1]),
    "confidence is above 1": changed(confidence=[5, 1001]),
    "astray is flat": changed(astray=[5]),
    "not one place": changed(confidence=[], stands="", astray=[]),
    "a text of no tokens": {**GOOD, "texts": [{"category": "edit", "prompt": [1], "tokens": []}]},
    "a token below 0": {**GOOD, "texts": [{"category": "edit", "prompt": [1], "tokens": [-1]}]},
}
DAMAGED = {
    "not gzip": b"PK\x03\x04" + bytes(100),
    "truncated": gzip.compress(json.dumps(GOOD).encode())[:-20],
    "a wrong checksum": gzip.compress(json.dumps(GOOD).encode())[:-8] + bytes(8),
    "a bit flipped": bytes(b ^ (i == 15) * 255 for i, b in enumerate(gzip.compress(json.dumps(GOOD).encode()))),
    "cut JSON": gzip.compress(json.dumps(GOOD).encode()[:-3]),
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


def test_a_file_that_is_not_there(tmp_path):
    assert "cannot read" in refused(tmp_path / "none.json.gz")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "r.json.gz"
    text = json.dumps(GOOD).encode()
    monkeypatch.setattr(recordings, "_MOST_BYTES", 10_000)
    path.write_bytes(gzip.compress(text.ljust(10_000)))
    assert recordings.read(path).greedy
    path.write_bytes(gzip.compress(text.ljust(10_001)))
    assert "too large" in refused(path)
    # Of fifty million bytes no more is read than the limit: the damage behind it is not even seen.
    whole = gzip.compress(text.ljust(50_000_000), 1)
    path.write_bytes(whole[: len(whole) // 2])
    assert "too large" in refused(path)
