"""Links, pipes and other things in the cache: nothing outside of it is written or removed, and damage is repaired."""

import os
import shutil

import hub_pairs
import pytest
from driver import TARGET, call, complaint
from hub_pairs import BIG_FILE, NAME, PAIR, SIZES, files, pull_here, pulled_here, weights

from specdec_cli.pairs import pulled_pairs
from specdec_cli.pairs.hub import cache


@pytest.fixture
def planned(inside):
    return hub_pairs.planned()


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("not yours")
    return folder


def state(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


PATHS = {
    "repository": lambda model, _: cache.folder_of(model.repo),
    "blobs": lambda model, file: cache.blob_of(model, file).parent,
    "snapshots": lambda model, file: cache.path_of(model, file).parents[1],
    "commit": lambda model, file: cache.path_of(model, file).parent,
    "refs": lambda model, _: cache.ref_of(model.repo).parent,
    "lock": lambda model, file: cache.lock_of(model, file).parent,
}


PULL, REMOVE = ["pull", *PAIR, "--check"], ["rm", NAME, "--yes"]


LINKED = [(PULL, "blobs"), (PULL, "lock"), (REMOVE, "snapshots"), (REMOVE, "refs")]
MORE_LINKED = [(PULL, "repository"), (PULL, "commit"), (PULL, "refs"), (REMOVE, "blobs")]


def and_slow(quick, more):
    return [*quick, *(pytest.param(*each, marks=pytest.mark.slow) for each in more)]


@pytest.mark.parametrize(("command", "which"), and_slow(LINKED, MORE_LINKED))
def test_a_linked_folder_is_left_alone(planned, outside, command, which):
    """Whoever moved a part of the cache elsewhere keeps what is there."""
    pulled_here()
    folder = PATHS[which](*planned)
    shutil.move(folder, outside / "moved")
    folder.symlink_to(outside / "moved")
    cache.blob_of(*planned).write_bytes(bytes(SIZES[0]))  # so that there is something to write
    before = state(outside)
    done = call(*command)
    assert done.exit_code == (0 if (command, which) == (REMOVE, "refs") else 4), done.output
    if done.exit_code:
        assert "link" in complaint("\n".join(done.stderr.splitlines()[-2:]))[0]
    assert state(outside) == before


FILES = {
    "partial": cache.partial_of,
    "blob": cache.blob_of,
    "lock": cache.lock_of,
    "ref": lambda model, _: cache.ref_of(model.repo),
    "pointer": cache.path_of,
}
KINDS = {
    "link": lambda path, victim: path.symlink_to(victim),
    "new": lambda path, victim: path.symlink_to(victim.with_name("nothing")),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "pipe": lambda path, _: os.mkfifo(path),
    "loop": lambda path, _: path.symlink_to(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "junk": lambda path, _: path.write_bytes(b"\xff\0"),
}
IN_THE_WAY = [
    *(("partial", "hard link"), ("blob", "link"), ("blob", "device"), ("lock", "new")),
    *(("ref", "pipe"), ("ref", "junk"), ("pointer", "loop")),
]
MORE_IN_THE_WAY = [
    *(("partial", "link"), ("partial", "pipe"), ("lock", "hard link"), ("lock", "pipe")),
    *(("ref", "link"), ("ref", "hard link"), ("pointer", "link"), ("pointer", "junk")),
]


@pytest.mark.parametrize(("which", "kind"), and_slow(IN_THE_WAY, MORE_IN_THE_WAY))
def test_a_file_in_the_way_is_replaced(planned, outside, which, kind):
    path = FILES[which](*planned)
    path.parent.mkdir(parents=True)
    KINDS[kind](path, outside / "file")
    found = call("ls"), call("rm", NAME, "--yes")
    assert [done.exit_code for done in found] == [0, 2]
    done = pull_here(*PAIR)
    assert done.exit_code == 0, done.output
    assert cache.path_of(*planned).read_bytes() == TARGET.read_bytes()
    assert state(outside) == {str(outside / "file"): b"not yours"}


def test_what_the_library_takes_for_content_is_not_removed_elsewhere(planned, outside, monkeypatch):
    """As of a file above the Hub's limit, for which huggingface_hub uses what is there."""
    monkeypatch.setattr("specdec_cli.pairs.hub.download._MAX_HTTP_BYTES", 0)
    (outside / "file").write_bytes(bytes(SIZES[0]))
    blob = cache.blob_of(*planned)
    blob.parent.mkdir(parents=True)
    blob.symlink_to(outside / "file")
    assert pull_here(*PAIR).exit_code == 4 and not blob.is_symlink()
    assert state(outside) == {str(outside / "file"): bytes(SIZES[0])}


def share(blob):
    """As huggingface_hub does it with what Xet brings: the content beside the repositories, and a link in each."""
    shared = cache.cache_dir() / "blobs" / "ab" / "abc"
    shared.parent.mkdir(parents=True)
    blob.replace(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    return shared


@pytest.mark.parametrize("linked", [True, False])
def test_content_that_repositories_share_goes_with_the_last(planned, linked):
    pulled_here()
    shared = share(cache.blob_of(*planned))
    other = cache.folder_of("org/other") / "blobs" / "etag"
    other.parent.mkdir(parents=True)
    other.symlink_to(os.path.relpath(shared, other.parent) if linked else "nothing")
    pair, frees = pulled_pairs.require(NAME), SIZES[1] if linked else sum(SIZES)
    assert pulled_pairs.removable(pair) == (frees, []) and pulled_pairs.remove(pair) == frees
    assert shared.exists() == linked and not cache.folder_of(planned[0].repo).exists()


def test_damaged_content_that_repositories_share(planned):
    pulled_here()
    blob = cache.blob_of(*planned)
    shared = share(blob)
    assert pulled_here(*PAIR, "--check")["already"]
    shared.write_bytes(bytes(SIZES[0]))
    assert pulled_here(*PAIR, "--check")["downloaded"] == SIZES[0]
    assert not shared.exists() and blob.read_bytes() == TARGET.read_bytes()


def test_damaged_content_of_the_right_size(hub, planned, tmp_path):
    pulled_here()
    blob = cache.blob_of(*planned)
    damaged = bytes(SIZES[0])
    blob.write_bytes(damaged)
    hub.reset()
    assert pulled_here()["already"] and hub.requests == []  # gigabytes are not read at each pull
    assert pulled_here(*PAIR, "--check", "--dry-run")["to_download"] == SIZES[0] and blob.read_bytes() == damaged
    hub.reset()
    assert pulled_here(*PAIR, "--check")["downloaded"] == weights(hub) == SIZES[0]
    assert blob.read_bytes() == TARGET.read_bytes() and BIG_FILE in files(tmp_path)
    hub.reset()
    assert pulled_here(*PAIR, "--check")["already"] and hub.requests == []
    done = call("pull", *PAIR, "--check")
    assert "undamaged" in done.stdout
