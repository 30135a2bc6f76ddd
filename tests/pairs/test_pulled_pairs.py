"""Records of pulled pairs, and what removing one frees and keeps. The cache is laid out as the Hub's clients do it."""

import hashlib
import json
import os
from dataclasses import replace

import pytest

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.pairs import profiles
from specdec_cli.pairs import pulled_pairs as pairs
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.pulled_pairs import PulledPair

FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path):
    folder = tmp_path / "hf" / "hub"
    folder.mkdir(parents=True)
    return folder


def model(repo="org/t", *contents: bytes, names=("m-Q8_0.gguf",), commit=FIRST) -> RemoteModel:
    files = [
        RemoteFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in zip(names, contents or (b"target",), strict=True)
    ]
    return RemoteModel(f"{repo}:Q8_0", repo, commit, tuple(files), False, "apache-2.0")


def store(cache, found: RemoteModel, *contents: bytes, links=True) -> None:
    """Put files into the cache: contents by their checksum, and under each commit links to them."""
    top = cache / f"models--{found.repo.replace('/', '--')}"
    (top / "blobs").mkdir(parents=True, exist_ok=True)
    for file, content in zip(found.files, contents, strict=True):
        pointer, blob = top / "snapshots" / found.commit / file.name, top / "blobs" / file.digest
        pointer.parent.mkdir(parents=True, exist_ok=True)
        (blob if links else pointer).write_bytes(content)
        if links:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))


TARGET, DRAFT = model("org/t", b"target"), model("org/d", b"draft")
PAIR = PulledPair("mine", TARGET, DRAFT, "2026-01-02")


def stored(cache, **changes) -> PulledPair:
    """A pair in the cache and on record."""
    pair = replace(PAIR, **changes)
    store(cache, TARGET, b"target")
    store(cache, DRAFT, b"draft")
    pairs.save(pair)
    assert pairs.load(pair.name) == pair and pair.name in pairs.names()
    return pair


def removed(pair: PulledPair, frees: int, keeps=()) -> None:
    """Remove a pair; what was announced is what happens."""
    assert pairs.removable(pair) == (frees, list(keeps))
    assert pairs.remove(pair) == frees
    assert pairs.load(pair.name) is None


def record(name):
    return profiles.config_dir() / "pulled" / f"{name}.json"


def contents(cache) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file() or path.is_symlink()}


# --- records ---


def test_a_pair_is_here_if_all_its_files_are_whole(cache):
    assert not PAIR.is_whole()
    stored(cache)
    assert PAIR.is_whole()
    target, draft = PAIR.paths()
    assert (target.read_bytes(), draft.read_bytes()) == (b"target", b"draft")
    assert replace(PAIR, draft=None).paths() == (target, None)
    draft.resolve().write_bytes(b"dra")
    assert not PAIR.is_whole() and replace(PAIR, draft=None).is_whole()


def test_names_of_pairs():
    assert pairs.name_of(model(names=["Q8/t.Q8_0-00001-of-00001.gguf"]), DRAFT) == "t.Q8_0+m-Q8_0"
    assert pairs.name_of(TARGET, None) == "m-Q8_0"
    long = model(names=["x" * 200 + ".gguf"])
    assert pairs.name_of(long, long) == f"{'x' * 60}+{'x' * 60}"
    with pytest.raises(UsageError):
        pairs.name_of(model(names=["\u4e2d\u6587.gguf"]), DRAFT)


@pytest.mark.parametrize("name", ["", "..", "-x", "../a", "a\n", "\u00e4", "a.yaml", "x" * 152])
def test_impossible_names(name):
    with pytest.raises(UsageError) as caught:
        pairs.check_name(name)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["../pulled/mine", "./mine", "a\0b", "x" * 300])
def test_a_path_names_no_pair(cache, name):
    """Else a pair would not be known as itself, and its files would stay for its own sake."""
    stored(cache)
    assert pairs.load(name) is None


@pytest.mark.parametrize(
    ("of_file", "change"),
    [
        (False, {"files": []}),
        (True, {"name": "../../../../precious"}),
        (True, {"digest": "../../../precious"}),
        (False, {"commit": "../../.."}),
        (False, {"repo": "../.."}),
        (True, {"size": "many"}),
    ],
    ids=str,
)
def test_a_damaged_record_is_told_and_hides_no_other(cache, of_file, change):
    other = stored(cache, name="other")
    (cache.parent / "precious").write_text("kept")
    data = json.loads(record("other").read_text())
    (data["draft"]["files"][0] if of_file else data["draft"]).update(change)
    record("broken").write_text(json.dumps(data))
    with pytest.raises(SpecdecError, match="cannot read") as caught:
        pairs.load("broken")
    assert "specdec pull broken" in caught.value.hint and "\n" not in str(caught.value)
    assert "broken" in pairs.names()
    with pytest.raises(SpecdecError, match=r"cannot read .*broken"):
        pairs.remove(other)  # it may use the same files
    record("broken").unlink()
    removed(other, 11)
    assert (cache.parent / "precious").exists()


# --- removing ---


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize(("draft", "frees"), [(DRAFT, 11), (TARGET, 6)], ids=["as made", "changed by the user"])
def test_a_profile_goes_with_the_pair_that_made_it(cache, made, draft, frees):
    """A model that drafts for itself is freed once."""
    path = profiles.save("mine", "org/t:Q8_0", "org/d:Q8_0", "pulled")
    removed(stored(cache, made_profile=made, draft=draft), frees)
    assert path.exists() != (made and draft is DRAFT)


TWIN, LATER = model("org/twin", b"draft"), replace(TARGET, commit=SECOND)


@pytest.mark.parametrize(
    ("other", "content", "frees", "keeps"),
    [
        (DRAFT, b"draft", 6, ["m-Q8_0.gguf"]),  # one pair's draft is another's target
        (TWIN, b"draft", 11, []),  # equal files of two repositories are two files
        (LATER, b"target", 5, ["m-Q8_0.gguf"]),  # a commit that changed the README only: both link to one blob
    ],
)
def test_what_another_pair_uses_stays_until_that_goes_too(cache, other, content, frees, keeps):
    pair = stored(cache)
    if other is not DRAFT:
        store(cache, other, content)
    pairs.save(replace(PAIR, name="other", target=other, draft=None))
    removed(pair, frees, keeps)
    assert pairs.load("other").is_whole()
    removed(pairs.load("other"), len(content))
    assert contents(cache) == set()


def test_content_that_a_commit_without_a_record_links_to_is_not_freed(cache):
    """Another program may have put it there."""
    pair = stored(cache)
    store(cache, LATER, b"target")
    removed(pair, 5)
    assert contents(cache) == {"m-Q8_0.gguf", TARGET.files[0].digest}


def test_without_links_the_files_themselves_go(cache):
    store(cache, TARGET, b"target", links=False)
    pair = replace(PAIR, draft=None)
    pairs.save(pair)
    assert pair.is_whole()
    removed(pair, 6)
    assert list(cache.glob("models--*")) == []


@pytest.mark.parametrize(("digest", "frees"), [(TARGET.files[0].digest, 3), ("c" * 64, 0)], ids=["its own", "another"])
def test_a_download_that_was_cut_short_goes_with_its_own_pair(cache, digest, frees):
    pairs.save(PAIR)
    partial = cache / "models--org--t" / "blobs" / f"{digest}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"tar")
    removed(PAIR, frees)
    assert partial.exists() == (frees == 0)


def test_what_cannot_be_removed_is_told_and_stays_on_record(cache):
    pair = stored(cache)
    pointer = PAIR.paths()[0]
    pointer.unlink()
    pointer.mkdir()
    with pytest.raises(SpecdecError, match="cannot remove") as caught:
        pairs.remove(pair)
    assert caught.value.hint and pairs.load("mine") == pair
