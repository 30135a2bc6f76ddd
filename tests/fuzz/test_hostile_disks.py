"""Full and unwritable disks, and hostile files of results: older results stay, byte for byte, and answers come."""

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from children import on_full_disk
from damage import spoilt
from driver import DRAFT, PROMPT, TARGET, succeeded
from fuzzing import Ended, cases, in_child

from specdec_cli.gguf.reader import read_header
from specdec_cli.measure.traces import INCOMPLETE, read_trace

PAIR = ("-m", TARGET, "-md", DRAFT)
BRIEF = (*PAIR, "--raw", "-n", 4, "-k", 2)
COMPARED = ("compare", *BRIEF, "--repeat", 1, PROMPT)
FOLDERS = {"XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data"}

COMMANDS = {
    "a trace": ("run", "-q", *BRIEF, "--trace", "run.jsonl", PROMPT),
    "costs": ("run", "-q", *PAIR, "--raw", "-n", 12, "-k", "auto", PROMPT),
    "a corpus": ("run", "-q", *BRIEF, "--drafter", "ngram", "--ngram-corpus", "corpus.txt", PROMPT),
    "a page": (*COMPARED, "-o", "page.html", "--save", "older"),
    "a player": ("replay", "kept.jsonl", "-o", "player.html"),
    "a picture": ("replay", "kept.jsonl", "-o", "run.svg"),
    "a quantised draft": ("draft", "quantize", "-m", TARGET, "--type", "Q2_K", "--force", "-o", "draft.gguf"),
    "a pruned draft": ("draft", "prune", "-m", TARGET, "--keep-layers", "0,1", "--force", "-o", "draft.gguf"),
    "a tuning": ("tune", *PAIR, "--seconds", 1),
}
FILES = [{"name": "x.gguf", "size": 5, "digest": "d" * 64}]
MODEL = {"reference": "a/b:Q4", "repo": "a/b", "commit": "c" * 40, "files": FILES}
PULLED = {"format": 1, "target": MODEL, "draft": None, "verdict": "identical", "pulled": "2026-01-02"}
NAMED = (".jsonl", ".html", ".svg", ".txt", ".gguf")
ANSWERS = ("a trace", "costs", "a corpus")
SECONDS = 30
"""For what measures: a tuning takes as long as it is told, and more on a busy machine."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A user's folders after every command, in none of which anything failed."""
    home = tmp_path_factory.mktemp("home")
    (home / "corpus.txt").write_text("def f(x):\n    return x\n" * 50)
    (home / "config/specdec/pulled").mkdir(parents=True)
    (home / "config/specdec/pulled/own.json").write_text(json.dumps(PULLED))
    for args in (("run", *BRIEF, "--trace", "kept.jsonl", PROMPT), *COMMANDS.values()):
        longer = ("--seconds", 10) if args[0] == "tune" else ()  # or a busy machine records too little
        ended = in_folder(home, (*args, *longer))
        assert ended.code == 0, f"{args}\n{ended.text}"
    return home


@pytest.fixture
def home(kept, tmp_path):
    """A copy of a user's folders."""
    return shutil.copytree(kept, tmp_path / "home")


def in_folder(home: Path, args, most_bytes=1 << 40, **environment) -> Ended:
    """A command with the files that it names in a folder."""
    named = [str(home / arg) if Path(arg).suffix in NAMED else arg for arg in map(str, args)]
    own = {name: str(home / folder) for name, folder in FOLDERS.items()}
    return in_child(on_full_disk, most_bytes, named, seconds=SECONDS, SPECDEC_THREADS="1", **{**own, **environment})


def whole(path: Path) -> bool:
    """Whether a file is one that specdec has written to its end."""
    match path.suffixes[-1]:
        case ".jsonl":
            return INCOMPLETE not in read_trace(path)[1][-1].notes
        case ".html":
            return path.read_text().rstrip().endswith("</html>")
        case ".svg":
            return path.read_text().rstrip().endswith("</svg>")
        case ".json":
            return isinstance(json.loads(path.read_text()), dict)
        case ".gz":
            return isinstance(json.loads(gzip.decompress(path.read_bytes())), dict)
        case ".gguf":
            return read_header(path).size > 0
    return path.suffix in (".index", ".txt")


def files(home: Path) -> dict[Path, bytes]:
    return {path.relative_to(home): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@cases(50)
def test_full_disks(home, chance):
    name = chance.choice([*COMMANDS])
    largest = 22 if "draft" in name else 17
    room = chance.choice((0, 1, 4096, 1 << 40, *[int(2 ** chance.uniform(0, largest)) for _ in range(8)]))
    if chance.random() < 0.5:
        shutil.rmtree(home / "cache")  # what is kept there is measured again
    before = files(home)
    ended = in_folder(home, COMMANDS[name], room)
    about = f"{name} with {room} bytes\n{ended.text}"
    ended.assert_sound(about, seconds=SECONDS)
    after = files(home)
    for path, content in before.items():
        assert after.get(path) == content or whole(home / path), f"{path} is lost, {about}"
    for path in after.keys() - before.keys():
        assert whole(home / path), f"{path} is left, {about}"
    if ended.code == 0 or name in ANSWERS:
        assert ended.out, about
    if name in ("costs", "a corpus"):
        assert ended.code == 0, about


def spoilt_folders(chance: random.Random, home: Path) -> dict[str, str]:
    """Some of a user's folders are such that cannot be written: in an environment, or where they are."""
    environment = {}
    file, loop = home / "file", home / "loop"
    file.touch()
    loop.symlink_to(loop)
    for name in chance.sample([*FOLDERS], chance.choice((1, 1, 2, 3))):
        way = chance.choice(("/dev/null", "/proc", "/sys/nowhere", str(file), str(loop), "files inside", ""))
        if way != "files inside":
            environment[name] = way
            continue
        for inside in ("specdec", "specdec/costs", "specdec/corpora", "specdec/tuned", "specdec/comparisons"):
            if chance.random() < 0.4:
                place = home / FOLDERS[name] / inside
                shutil.rmtree(place, ignore_errors=True)
                place.parent.is_dir() and place.touch()
    return environment


@cases(50)
def test_folders_that_cannot_be_written(home, chance):
    more = {"ls": ("ls",), "results": ("compare", "--list"), "drafters": ("drafters",), "doctor": ("doctor",)}
    commands = {**COMMANDS, **more}
    environment = spoilt_folders(chance, home)
    before = files(home)
    name = chance.choice([*commands])
    ended = in_folder(home, commands[name], HOME=str(home), **environment)
    about = f"{name} in {environment}\n{ended.text}"
    ended.assert_sound(about, seconds=SECONDS)
    if name in ANSWERS:
        assert ended.code == 0 and ended.out, about
    elif ended.code and name != "doctor":
        assert not ended.out, f"it was measured in vain, {about}"
    for path, content in before.items():
        assert (home / path).read_bytes() == content or whole(home / path), f"{path}: {about}"


@cases(120)
def test_hostile_files_of_its_own(home, chance):
    """What is kept of pairs and models: at most a note. Results and pairs that are named may be refused."""
    records = sorted(home / path for path in files(home) if path.suffix in (".json", ".gz", ".index"))
    assert len(records) >= 6, records
    path = chance.choice(records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(spoilt(chance, gzip.decompress(path.read_bytes()))))
    elif chance.random() < 0.1:
        path.unlink()
        chance.choice((os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")))(path)
    elif path.suffix == ".index":
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
    else:
        path.write_bytes(spoilt(chance, path.read_bytes()))
    commands = [("run", *PAIR, "--raw", "-n", 6, PROMPT), ("tune", *PAIR, "--what-if", "epyc-2core"), ("ls",)]
    commands += [("run", "-m", TARGET, "--drafter", "self", "-n", 4, PROMPT), COMMANDS["a corpus"]]
    if path.parent.name == "pulled":
        commands = [("ls",), ("show", "own"), ("rm", "own", "-y")]
    elif path.parent.name == "comparisons":
        commands = [("compare", "--list"), (*COMPARED, "--against", "older")]
    for args in chance.sample(commands, 2):
        ended = in_folder(home, args)
        about = f"{path.relative_to(home)}: {args}"
        ended.assert_sound(about, seconds=10)
        allowed = path.parent.name in ("pulled", "comparisons") or args[0] == "tune" or "self" in args
        assert ended.code == 0 or allowed, f"{about}\n{ended.text}"


def test_the_folders_are_those_of_a_user(kept):
    """So that nothing above is tried on files that are not there."""
    assert {path.suffix for path in files(kept)} >= {".jsonl", ".html", ".svg", ".json", ".gz", ".gguf", ".index"}
    assert all(whole(kept / path) for path in files(kept))
    assert succeeded("compare", "--list", XDG_DATA_HOME=str(kept / "data")).stdout.startswith("older")
