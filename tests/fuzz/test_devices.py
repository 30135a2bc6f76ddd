"""Devices, folders and loops as every file that a command reads or writes: an answer, or an error of two lines."""

import os
from pathlib import Path

import pytest
from devices import NUMBERS, device
from driver import DEMO, DRAFT, PROMPT, TARGET
from fuzzing import specdec
from hostile import trace

PAIR = ("-m", TARGET, "-md", DRAFT)
BRIEF = ("--raw", "-n", 2, "-c", 256)
RUN = ("run", *PAIR, *BRIEF)
COMPARED = ("compare", *PAIR, *BRIEF, "--repeat", 1)
HERE, KEPT, ASKED = "the device", "a trace", "requests"
INPUTS = {
    "-f": (*RUN, "-f", HERE),
    "--grammar": (*RUN, "--grammar", HERE, PROMPT),
    "--json-schema": (*RUN, "--json-schema", HERE, PROMPT),
    "--prediction": (*RUN, "--drafter", "ngram", "--prediction", HERE, PROMPT),
    "--ngram-corpus": (*RUN, "--drafter", "ngram", "--ngram-corpus", HERE, PROMPT),
    "--lora": (*RUN, "--lora", HERE, PROMPT),
    "-m": ("run", "-m", HERE, "--drafter", "none", *BRIEF, PROMPT),
    "-md": ("run", "-m", TARGET, "-md", HERE, *BRIEF, PROMPT),
    "heads": ("run", "-m", DEMO / "target.gguf", "-md", HERE, "--drafter", "medusa", *BRIEF, PROMPT),
    "check": ("check", HERE, DRAFT),
    "prompts": (*COMPARED, "--prompts", HERE),
    "edit": ("edit", HERE, "say hello", *PAIR, "-n", 2, "-c", 256, "--write"),
    "replay": ("replay", HERE),
    "batch": ("batch", *PAIR, HERE, "-o", "batch.jsonl"),
    "prune": ("draft", "prune", "-m", HERE, "--keep-layers", "0,1", "-o", "pruned.gguf"),
}
OUTPUTS = {
    "--trace": (*RUN, "--trace", HERE, PROMPT),
    "-o of compare": (*COMPARED, "-o", HERE, PROMPT),
    "-o of replay": ("replay", KEPT, "-o", f"{HERE}.html"),
    "-o of quantize": ("draft", "quantize", "-m", TARGET, "--type", "Q2_K", "--force", "-o", f"{HERE}.gguf"),
    "-o of batch": ("batch", *PAIR, ASKED, "-o", HERE),
    "-o of export": ("export", "llama-server", *PAIR, "-o", HERE),
}
PLACES = (*NUMBERS, "a folder", "a loop", "nothing")
FILES = ("config.yaml", "profiles/mine.yaml", "pulled/mine.json")
"""Of a user's settings."""
SECONDS = 20
"""What measures may take longer than five seconds."""


def place(folder: Path, kind: str) -> Path:
    if kind in NUMBERS:
        return device(folder, kind)
    there = folder / kind
    if kind == "a folder":
        there.mkdir(exist_ok=True)
    elif kind == "a loop" and not os.path.lexists(there):
        there.symlink_to(there)
    return there


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / KEPT).write_text(trace("hello"))
    body = '{"prompt": "x", "max_tokens": 2}'
    (tmp_path / ASKED).write_text(f'{{"custom_id": "1", "url": "/v1/completions", "body": {body}}}\n')
    return tmp_path


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("name", [*INPUTS, *OUTPUTS])
def test_files_of_commands(home, name, kind):
    where = place(home, kind)
    for suffix in (".html", ".gguf"):
        (home / f"{HERE}{suffix}").symlink_to(where)
    args = [where if arg == HERE else arg for arg in {**INPUTS, **OUTPUTS}[name]]
    seconds = SECONDS if args[0] in ("compare", "draft") else 5
    specdec(*args, seconds=seconds).assert_sound(f"{name} is {kind}", seconds=seconds)
    assert kind not in NUMBERS or where.is_char_device(), f"{name} replaced {kind}"


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("name", FILES)
def test_files_of_settings(home, name, kind):
    there = home / "config" / "specdec" / name
    there.parent.mkdir(parents=True)
    there.symlink_to(place(home, kind))
    for args in ((*RUN, PROMPT), ("run", "-p", "mine", *BRIEF, PROMPT), ("ls",), ("show", "mine"), ("rm", "mine")):
        specdec(*args, XDG_CONFIG_HOME=str(home / "config")).assert_sound(f"{name} is {kind}: {args[0]}")
    assert kind not in NUMBERS or place(home, kind).is_char_device(), f"{name} replaced {kind}"
