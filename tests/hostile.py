# ruff: noqa: E501
"""Names and texts that a terminal would obey, in every place of every command that holds one."""

import functools
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import ggufs
from driver import DRAFT, TARGET, succeeded

from specdec_cli.user_files import config_dir

MARK = "ZXZpbA"
PIECES = (
    *(f"\x1b]52;c;{MARK}\x07", "\x1b[2J", "\x1bc", "\x9b2J", "\x9d0;t\x9c", "\x1b]8;;http://x\x1b\\", "\x1bP+q\x1b\\"),
    *("\x07", "\x08\x08", *"\r\x0b\x0c\x0e\x7f\x85\u2028\u2029\u200e\u200f\u202e\u2066\u061c"),
    *("\x1b[?1049h", "\x1b[?25l", "\x1b[35;95m", "[bold]", "[/]", "[link=x]", ":smile:", "\t", "\n"),
    *("\udcff", "\ufffe", "{x}", "%s", "\\", "|", "'", '"', "\u4e2d\u6587", "\U0001f467", "x" * 60),
)


def payload(chance: random.Random) -> str:
    """A name of some of them."""
    pieces = chance.choices((*PIECES, chr(chance.randrange(1, 0x3000)), "name"), k=chance.randint(1, 12))
    return "n" + "".join(pieces)


FIXED = "n" + "".join(PIECES[:-6])
_OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\d*[ABCDG]|[012]?K|J)|\x1b\[\?2026[hl]")
_THEIRS = ("\x1b[35;95m", "\x1b]", MARK + "\x07", "\x1b[2J", "\x1bc", "\x1bP", "\x1b[?25l", "\x1b[?1049h")


def obeyed(text: str) -> set[str]:
    """Characters that a terminal obeys, or that change how a line reads."""
    unsafe = {*range(0x20), 0x7F, *range(0x80, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
    return {character for character in text if ord(character) in unsafe - {0x0A, 0x09, 0x0D}}


def assert_shown(text: str, terminal: bool = False) -> None:
    """Nothing that a terminal obeys is there but for what specdec itself sends, and no part of a payload as it was."""
    assert not [part for part in _THEIRS if part in text], ascii(text)
    if terminal:  # which also gets a carriage return before each line break
        text = _OURS.sub("", text)
    left = obeyed(text if terminal else text.replace("\r", "\x1b"))
    assert not left, f"{left!a} in {text!a}"


def _file(folder: Path, name: str, source: Path, ending: str = ".gguf") -> Path:
    """A copy under a name: what of it a file's name can hold."""
    kept = os.fsencode(name.replace("/", "_").replace("\0", ""))[: 250 - len(ending)].decode("utf-8", "surrogateescape")
    path = folder / os.fsdecode(os.fsencode(kept) + os.fsencode(ending))
    shutil.copyfile(source, path)
    return path


def _written(folder: Path, name: str, text: str, ending: str = ".jsonl") -> Path:
    (folder / "plain").write_text(text, "utf-8", "surrogatepass")
    return _file(folder, name, folder / "plain", ending)


def _profile(folder: Path, name: str, text: str) -> str:
    (config_dir() / "profiles").mkdir(parents=True, exist_ok=True)
    path = _written(
        folder, name, f"target: x.gguf\ndescription: {json.dumps(text)}\nwhy: {json.dumps(text)}\n", ".yaml"
    )
    return str(path.rename(config_dir() / "profiles" / path.name).stem)


def _model(folder: Path, text: str) -> Path:
    texts = (
        ggufs.key(f"general.{key}", ggufs.STRING, ggufs.text(text.encode("utf-8", "replace")))
        for key in ("name", "license", "quantized_by")
    )
    return ggufs.with_keys(DRAFT, folder / "named.gguf", *texts)


def trace(text: str) -> str:
    """A recording with a text in each of its texts."""
    text = text.replace("\udcff", "")  # which no recording may hold
    token = {"id": 1, "text": text, "origin": "correction", "p": 0.5, "q": None}
    step = {"event": "step", "index": 1, "tokens": [token], "drafted": [3, 4], "accepted": 0, "draft_s": 0.1,
            "rejected_text": [text, text], "source": text, "why": text, "verify_s": 0.1, "sample_s": 0.0, "at": 0.02}  # fmt: skip
    done = {"event": "done", "reason": "stop", "tail": text, "notes": [text], "at": 0.03}
    settings = {
        "target": text,
        "draft": text,
        "drafter": "model",
        "prompt": text,
        "draft_tokens": 3,
        "temperature": 0.0,
    }
    lines = ({"event": "run", "format": 1, **settings}, {**step, "index": 0, "at": 0.01}, step, done)
    return "".join(json.dumps(line) + "\n" for line in lines)


def _result(folder: Path, text: str) -> Path:
    """A kept comparison, all of whose free texts are this one."""
    kept = json.loads(_measured())
    kept["machine"]["platform"] = text
    kept["versions"] = dict.fromkeys(kept["versions"], text)
    return _written(folder, "kept", json.dumps(kept), ".json")


@functools.cache
def _measured() -> str:
    return succeeded(*COMPARE, "x", "--json").stdout


def _config(text: str) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.yaml").write_text(f"{json.dumps(text)}: 1\n")


BRIEF = ("-n", "2", "-t", "1", "--drafter", "none")
COMPARE = ("compare", "-n", "1", "--repeat", "1", "-t", "1", "--drafter", "ngram")

PLACES: dict[str, Callable[[Path, str], tuple[object, ...]]] = {
    "a target's file": lambda at, text: ("run", "x", "-m", _file(at, text, TARGET), *BRIEF),
    "a draft's file": lambda at, text: ("run", "x", "-m", TARGET, "-md", _file(at, text, DRAFT), "-n", "2", "-t", "1", "-v"),
    "a file that is no model": lambda at, text: ("run", "x", "-m", _written(at, text, text, ".gguf"), *BRIEF),
    "a file that is not there": lambda at, text: ("run", "x", "-m", f"{text}.gguf", *BRIEF),
    "a prompt's file": lambda _, text: ("run", "-f", text, *BRIEF),
    "a profile": lambda _, text: ("run", "x", "-p", text, *BRIEF),
    "a drafter": lambda _, text: ("run", "x", "-n", "2", "--drafter", text),
    "a rule": lambda _, text: ("run", "x", "--accept", text, *BRIEF),
    "a length": lambda _, text: ("run", "x", "-k", text, *BRIEF),
    "a number": lambda _, text: ("run", "x", "-n", text),
    "an option": lambda _, text: ("run", f"--{text}"),
    "a command": lambda _, text: (text,),
    "too many arguments": lambda _, text: ("show", "demo", text),
    "a trace's file": lambda at, text: ("run", "x", *BRIEF, "--trace", at / "none" / text.replace("\0", "")),
    "a key of config.yaml": lambda _, text: (_config(text), ("run", "x", *BRIEF))[1],
    "doctor": lambda _, text: (_config(text), ("doctor",))[1],
    "a recording": lambda at, text: ("replay", _written(at, "run", trace(text)), "-v", "--speed", "9"),
    "a recording's picture": lambda at, text: ("replay", _written(at, "run", trace(text)), "-o", at / "run.svg"),
    "a recording's page": lambda at, text: ("replay", _written(at, "run", trace(text)), "-o", at / "run.html"),
    "a recording's file": lambda at, text: ("replay", _written(at, text, text)),
    "a page's file": lambda at, text: ("replay", _written(at, "run", trace("x")), "-o", at / "none" / f"{text}.html"),
    "a model's own name": lambda at, text: ("check", _model(at, text), DRAFT),
    "a model's file that is compared": lambda at, text: ("check", _file(at, text, DRAFT), TARGET),
    "a quantisation": lambda at, text: ("draft", "quantize", "-m", DRAFT, "-o", at / "o.gguf", "--type", text),
    "a draft's new file": lambda at, text: ("draft", "prune", "-m", DRAFT, "-o", _file(at, text, DRAFT), "--keep-layers", "0", "--force", "-t", "1"),
    "layers": lambda at, text: ("draft", "prune", "-m", DRAFT, "-o", at / "o.gguf", "--keep-layers", text),
    "own profiles": lambda at, text: (_profile(at, text, text), ("ls",))[1],
    "an own profile": lambda at, text: ("show", _profile(at, text, text), "--sources"),
    "a pair to pull": lambda _, text: ("pull", text),
    "a repository to pull": lambda _, text: ("pull", "-m", f"{text}:Q4_K_M", "--dry-run"),
    "a pair to remove": lambda _, text: ("rm", text, "-y"),
    "hardware": lambda _, text: ("tune", "--what-if", text),
    "categories": lambda at, text: (*COMPARE, "--prompts", _written(at, "s", json.dumps({"prompt": "x", "category": text}))),
    "categories in Markdown": lambda at, text: (*COMPARE, "--md", "--prompts", _written(at, text, json.dumps({"prompt": "x", "category": text}))),
    "a suite": lambda _, text: ("compare", "--prompts", text),
    "a category": lambda _, text: ("compare", "--prompts", "python", "--category", text),
    "a variant": lambda _, text: ("compare", "--vs", text),
    "a kept result": lambda at, text: (*COMPARE, "x", "--against", _result(at, text)),
    "a result's name": lambda _, text: ("compare", "x", "--save", text),
}  # fmt: skip
SLOW = {"a target's file", "a draft's file", "doctor", "a draft's new file", "hardware", "a kept result"}
SLOW |= {"categories", "categories in Markdown"}
