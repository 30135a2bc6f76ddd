"""A hostile Hub, and a cache in which anything may lie: nothing outside of it changes, and every command ends."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from children import impatient
from fuzzing import Ended, cases, in_child
from hostile_hub import HostileHub, Mode
from hub_pairs import BIG, NAME, PAIR, SIZES, environment, publish

HONEST = Mode({}, 0, 0)
NEVER_TO_BLAME = {"altered", "other", "endless_chunks", "changed_json", "names", "crowd", "split", "deep", "wide"}
"""Tricks after which a model may be damaged, or unfit, or nameless: exit codes other than 0 and 4."""
SPARE = 4 << 20


@dataclass
class Place:
    """A cache, and beside it files that are none of its business."""

    top: Path
    hub: HostileHub

    def run(self, *args: object) -> Ended:
        timeout = 5.0 if self.hub.mode is HONEST else 0.2  # the machine may be busy
        ended = in_child(impatient, timeout, *args, **environment(self.hub, self.top))
        error = max(0, ended.err.rfind(b"specdec: "))  # a plan may come before it
        ended = replace(ended, out=ended.out + ended.err[:error], err=ended.err[error:])
        told = args[0] == "check" and ended.code == 3  # its report says why; there is no other error
        return replace(ended, err=b"specdec:\n  see the report") if told else ended

    @property
    def cache(self) -> Path:
        return self.top / "hf" / "hub"

    @property
    def outside(self) -> Path:
        return self.top / "outside"

    def size(self) -> int:
        return sum(path.lstat().st_size for path in (self.top / "hf").rglob("*"))

    def state(self) -> dict[str, object]:
        """Everything that is outside of the cache and the settings."""
        return {str(path): _state(path) for path in self.outside.rglob("*")}

    def wrong(self) -> list[str]:
        """Contents in the cache under a checksum that is not theirs."""
        blobs = [path for path in self.cache.glob("models--*/blobs/*") if path.is_file() and len(path.name) == 64]
        return [path.name for path in blobs if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]


def _state(path: Path) -> object:
    about = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
    return about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino, hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def hub() -> Iterator[HostileHub]:
    with HostileHub() as hub:
        publish(hub)
        yield hub


@pytest.fixture(scope="module")
def pulled(hub, tmp_path_factory) -> Path:
    """A cache and settings after an honest pull."""
    place = Place(tmp_path_factory.mktemp("pulled"), hub)
    hub.set_mode(HONEST)
    assert place.run("pull", *PAIR).code == 0
    return place.top


@pytest.fixture
def place(hub, pulled, tmp_path, chance) -> Place:
    """Empty or with the pair already pulled."""
    place = Place(tmp_path / "place", hub)
    (place.outside / "folder").mkdir(parents=True)
    (place.outside / "file").write_text("not yours")
    if chance.random() < 0.4:
        for name in ("hf", "config"):
            shutil.copytree(pulled / name, place.top / name, symlinks=True)
    return place


def furnish(place: Place, chance: random.Random) -> str:
    """Put something into the cache's way: at one of the paths that a pull uses, something else than it expects."""
    repo = place.hub.repos[BIG]
    file, about = next((name, about) for name, about in repo.commits[repo.main].items() if name.endswith(".gguf"))
    folder, lock = place.cache / f"models--{BIG.replace('/', '--')}", f"{about.sha256}.lock"
    blob, pointer = folder / "blobs" / about.sha256, folder / "snapshots" / repo.main / file
    paths = [blob, blob.with_name(f"{blob.name}.incomplete"), place.cache / ".locks" / folder.name / lock]
    path = chance.choice([*paths, folder / "refs" / "main", pointer])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    victim = place.outside / chance.choice(["file", "nothing", "folder", "same size"])
    (place.outside / "same size").write_bytes(bytes(about.size))
    kinds = {
        "link": lambda: path.symlink_to(victim),
        "hard link": lambda: path.hardlink_to(place.outside / "file"),
        "loop": lambda: path.symlink_to(path),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to(chance.choice(["/dev/zero", "/dev/null", "/dev/full", "/dev/stdin"])),
        "junk": lambda: path.write_bytes(chance.choice([b"\xff\xfe", b"", b"x" * about.size, b"\x1b[2J" * 100])),
    }
    kind = chance.choice(list(kinds))
    kinds[kind]()
    return f"{kind} at {path.relative_to(place.cache)}"


def assert_sound(place: Place, ended: Ended, about: object, before: dict[str, object], most: int) -> None:
    ended.assert_sound(about)
    assert place.state() == before, f"{about}: something outside of the cache has changed"
    assert place.size() < most, f"{about}: {place.size():,} bytes on the disk"
    if ended.code == 0:
        assert not place.wrong(), about


@cases(100)
def test_a_hub_in_a_hundred_modes(place, chance):
    """Two commands with a Hub in one mode, and two with an honest one, which make up for it."""
    mode = Mode.of(chance)
    tricks = {trick.__name__ for step in mode.tricks.values() for trick in step}
    most = sum(SIZES) + SPARE + (sum(SIZES) + (128 << 20) if tricks & NEVER_TO_BLAME else 0)
    before = place.state()
    pull = ("pull", *PAIR, "--as", "again")
    commands = [pull, (*pull, "--json"), (*pull, "--dry-run"), (*pull, "--check"), ("check", PAIR[1], PAIR[3])]
    for args in chance.sample(commands, 2):
        place.hub.set_mode(mode)
        ended = place.run(*args)
        assert_sound(place, ended, f"{mode}: {args}", before, most)
        if not tricks & NEVER_TO_BLAME:
            assert ended.code in (0, 4), f"{mode}: {args}\n{ended.code} {ended.text}"
    place.hub.set_mode(HONEST)
    later = chance.choice([("ls",), ("rm", NAME, "--yes"), ("rm", "again", "--yes", "--json")])
    for args in (later, (*pull, "--check")):
        ended = place.run(*args)
        assert_sound(place, ended, f"{mode}, and then {args}", before, most)
    assert ended.code == 0, f"{mode}\n{ended.text}"


@cases(60)
def test_whatever_lies_in_the_cache(place, chance):
    about = furnish(place, chance)
    before = place.state()
    place.hub.set_mode(HONEST)
    pull = ("pull", *PAIR)
    commands = [pull, (*pull, "--check"), ("rm", NAME, "--yes"), ("ls",), ("check", PAIR[1], PAIR[3])]
    for args in chance.sample(commands, 3):
        ended = place.run(*args)
        ended.assert_sound(f"{about}: {args}")
        assert place.state() == before, f"{about}: {args}\n{ended.text}"
