"""Full and unwritable disks, and hostile files of results: older results stay, byte for byte, and answers come."""

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import full_disk
import pytest
from driver import DRAFT, PROMPT, TARGET, succeeded
from fuzzing import cases, in_child, specdec
from rich.console import Console

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.display.comparison_tables import against
from specdec_cli.gguf.reader import read_header
from specdec_cli.measure import kept_comparisons
from specdec_cli.measure.traces import INCOMPLETE, read_trace

pytestmark = pytest.mark.fuzz

PAIR = ("-m", TARGET, "-md", DRAFT)
BRIEF = (*PAIR, "--raw", "-n", 4, "-k", 2)
COMPARED = ("compare", *BRIEF, "--repeat", 1, PROMPT)
SHARDS = pytest.mark.parametrize("shard", range(2))
FOLDERS = {"XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data"}

COMMANDS = {
    "a trace": ("run", "-q", *BRIEF, "--trace", "run.jsonl", PROMPT),
    "costs": ("run", "-q", *PAIR, "--raw", "-n", 12, "-k", "auto", PROMPT),
    "a corpus": ("run", "-q", *BRIEF, "--drafter", "ngram", "--ngram-corpus", "corpus.txt", PROMPT),
    "a result": (*COMPARED, "--save", "older"),
    "a page": (*COMPARED, "-o", "page.html", "--save", "older"),
    "a player": ("replay", "kept.jsonl", "-o", "player.html"),
    "a picture": ("replay", "kept.jsonl", "-o", "run.svg"),
    "a quantised draft": ("draft", "quantize", "-m", TARGET, "--type", "Q2_K", "--force", "-o", "draft.gguf"),
    "a pruned draft": ("draft", "prune", "-m", TARGET, "--keep-layers", "0,1", "--force", "-o", "draft.gguf"),
    "a tuning": ("tune", *PAIR, "--seconds", 1),
}
NAMED = (".jsonl", ".html", ".svg", ".txt", ".gguf")
ANSWERS = ("a trace", "costs", "a corpus")
SECONDS = 30
"""For what measures: a tuning takes as long as it is told, and more on a busy machine."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A user's folders after every command, in none of which anything failed."""
    home = tmp_path_factory.mktemp("home")
    (home / "corpus.txt").write_text("def f(x):\n    return x\n" * 50)
    environment = {name: str(home / folder) for name, folder in FOLDERS.items()}
    for args in (("run", *BRIEF, "--trace", "kept.jsonl", PROMPT), *COMMANDS.values()):
        longer = ("--seconds", 10) if args[0] == "tune" else ()  # or a busy machine records too little
        ended = in_folder(home, (*args, *longer), **environment)
        assert ended.code == 0, f"{args}\n{ended.text}"
    return home


def in_folder(home, args, most_bytes=1 << 40, **environment):
    """A command with the files that it names in a folder."""
    named = [str(home / arg) if Path(arg).suffix in NAMED else arg for arg in map(str, args)]
    return in_child(full_disk.main, most_bytes, named, seconds=SECONDS, SPECDEC_THREADS="1", **environment)


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


@SHARDS
def test_full_disks(kept, tmp_path, shard):
    for number, chance in enumerate(cases(25, f"full disks/{shard}")):
        home = tmp_path / str(number)
        shutil.copytree(kept, home)
        name = chance.choice([*COMMANDS])
        largest = 22 if "draft" in name else 17
        room = chance.choice((0, 1, 4096, 1 << 40, *[int(2 ** chance.uniform(0, largest)) for _ in range(8)]))
        if chance.random() < 0.5:
            shutil.rmtree(home / "cache")  # what is kept there is measured again
        before = files(home)
        ended = in_folder(home, COMMANDS[name], room, **{key: str(home / folder) for key, folder in FOLDERS.items()})
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
        shutil.rmtree(home)


UNWRITABLE = ("/dev/null", "/proc", "/sys/nowhere", "a file", "a loop", "files inside", "")


def spoil(chance: random.Random, home: Path) -> dict[str, str]:
    """The environment of a user whose folders cannot be written."""
    environment = {name: str(home / folder) for name, folder in FOLDERS.items()}
    for name in chance.sample([*FOLDERS], chance.choice((1, 1, 2, 3))):
        way = chance.choice(UNWRITABLE)
        if way == "a file":
            way = str(home / "file")
            Path(way).touch()
        elif way == "a loop":
            way = str(home / "loop")
            if not os.path.lexists(way):
                Path(way).symlink_to(way)
        elif way == "files inside":
            way = environment[name]
            for inside in ("specdec", "specdec/costs", "specdec/corpora", "specdec/tuned", "specdec/comparisons"):
                if chance.random() < 0.4:
                    place = Path(way) / inside
                    shutil.rmtree(place, ignore_errors=True)
                    place.parent.is_dir() and place.touch()
        environment[name] = way
    return environment


@SHARDS
def test_folders_that_cannot_be_written(kept, tmp_path, shard):
    more = {"ls": ("ls",), "results": ("compare", "--list"), "drafters": ("drafters",), "doctor": ("doctor",)}
    commands = {**COMMANDS, **more}
    for number, chance in enumerate(cases(25, f"folders/{shard}")):
        home = tmp_path / str(number)
        shutil.copytree(kept, home)
        environment = spoil(chance, home)
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
            after = home / path
            assert after.read_bytes() == content or whole(after), f"{path}: {about}"
        shutil.rmtree(home)


HOSTILE = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1e-320, 1e308, -1e308, 0.1, float("nan"), float("inf")),
    *("", "x", "\x1b]52;c;eA==\x07", "\u202e", "\u2028", "\ud800", "x" * 10**6, "%s{}", "1", "../../x", "\0"),
    *([], {}, [None], {"": None}, [[]], {"x": {"x": {}}}, [0] * 10**5),
)


def places(data, path=()):
    """Every place in a JSON value."""
    yield path
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(part, (*path, key))


def spoiled(chance: random.Random, text: bytes) -> bytes:
    """A JSON file with something wrong in it."""
    ways = ("missing", "bytes", "cut", "deep", "digits", "encoding", "end", *["value"] * 4)
    way = chance.choice(ways)
    if way == "deep":
        return chance.choice((b"[", b'{"a":')) * 10**5
    if way == "digits":
        return text.replace(b"1", b"1" * 5000, 1)
    if way == "encoding":
        return text.decode().encode(chance.choice(("utf-16", "utf-32", "utf-8-sig")))
    if way == "cut":
        return text[: chance.randrange(len(text))]
    if way == "end":
        return text + chance.choice((text, b"\0", b"\xff", b"]", b" " * (70 << 20)))
    if way == "bytes":
        content = bytearray(text)
        for _ in range(chance.choice((1, 3, 30))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        return bytes(content)
    data = json.loads(text)
    for _ in range(chance.choice((1, 1, 3))):
        path = chance.choice([*places(data)])
        if not path:
            data = chance.choice(HOSTILE)
            break
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        if way == "missing":
            del parent[path[-1]]
        else:
            parent[path[-1]] = chance.choice(HOSTILE)
    return json.dumps(data).encode()


@SHARDS
def test_hostile_results_in_process(kept, tmp_path, shard):
    """Either refused before anything is measured, or compared with afterwards."""
    path = tmp_path / "x.json"
    text = (kept / "data/specdec/comparisons/older.json").read_bytes()
    path.write_bytes(text)
    result = kept_comparisons.load(str(path))
    compared = 0
    for number, chance in enumerate(cases(1000, f"results/{shard}")):
        path.write_bytes(content := spoiled(chance, text))
        try:
            before = kept_comparisons.load(str(path))
        except SpecdecError:
            continue
        except Exception as error:
            raise AssertionError(f"case {number}: {content[:3000]}") from error
        console = Console(file=(tmp_path / "shown").open("w", encoding="utf-8"), highlight=False)
        console.print(against(result, before))
        compared += "now / then" in (tmp_path / "shown").read_text()
    assert compared > 0


@SHARDS
def test_hostile_results(kept, tmp_path, shard):
    text = (kept / "data/specdec/comparisons/older.json").read_bytes()
    environment = {name: str(kept / folder) for name, folder in FOLDERS.items()}
    special = {"a pipe": os.mkfifo, "a folder": lambda path: path.mkdir()}
    for name in ("/dev/zero", "/dev/full", "/dev/null"):
        special[name] = lambda path, name=name: path.symlink_to(name)
    for number, chance in enumerate(cases(25, f"results by command/{shard}")):
        path = tmp_path / f"{number}.json"
        way = chance.choice((*special, *["a file"] * 15))
        special[way](path) if way in special else path.write_bytes(spoiled(chance, text))
        args = (*COMPARED, "--against", path, "--save", f"mine{shard}{number}")
        ended = specdec(*args, seconds=10, SPECDEC_THREADS="1", **environment)
        about = f"case {number}, {way}"
        ended.assert_sound(about, seconds=10)
        saved = kept / f"data/specdec/comparisons/mine{shard}{number}.json"
        assert saved.exists() == (ended.code == 0), about
        saved.unlink(missing_ok=True)


@SHARDS
def test_hostile_files_of_its_own(kept, tmp_path, shard):
    """What is kept of pairs and models: at most a note."""
    records = sorted(kept / path for path in files(kept) if path.suffix in (".json", ".gz", ".index"))
    assert len(records) >= 6, records
    for number, chance in enumerate(cases(20, f"records/{shard}")):
        home = tmp_path / str(number)
        shutil.copytree(kept, home)
        path = home / chance.choice(records).relative_to(kept)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(spoiled(chance, gzip.decompress(path.read_bytes()))))
        elif chance.random() < 0.1:
            path.unlink()
            chance.choice((os.mkfifo, os.mkdir))(path)
        elif path.suffix == ".index":
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
        else:
            path.write_bytes(spoiled(chance, path.read_bytes()))
        commands = [("run", *PAIR, "--raw", "-n", 6, PROMPT), ("tune", *PAIR, "--what-if", "epyc-2core"), ("ls",)]
        commands += [("run", "-m", TARGET, "--drafter", "self", "-n", 4, PROMPT), COMMANDS["a corpus"]]
        environment = {name: str(home / folder) for name, folder in FOLDERS.items()}
        for args in chance.sample(commands, 2):
            ended = in_folder(home, args, **environment)
            about = f"{path.relative_to(home)} in case {number}: {args}"
            ended.assert_sound(about, seconds=10)
            assert ended.code == 0 or args[0] == "tune" or "self" in args, f"{about}\n{ended.text}"
        shutil.rmtree(home)


def test_the_folders_are_those_of_a_user(kept):
    """So that nothing above is tried on files that are not there."""
    assert {path.suffix for path in files(kept)} >= {".jsonl", ".html", ".svg", ".json", ".gz", ".gguf", ".index"}
    assert all(whole(kept / path) for path in files(kept))
    assert succeeded("compare", "--list", XDG_DATA_HOME=str(kept / "data")).stdout.startswith("older")
