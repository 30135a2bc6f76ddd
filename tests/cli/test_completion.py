"""What a shell offers for names of pairs and models: the functions, and the protocol that the shells speak."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml
from hub_pairs import own_profile
from typer.testing import CliRunner

from specdec_cli.cli import completion
from specdec_cli.cli.app import COMMANDS, app
from specdec_cli.pairs import profiles
from specdec_cli.pairs import pulled_pairs as pairs
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.pulled_pairs import PulledPair

PULLED = ("mine", "qwen3-8b")
BUNDLED = sorted(path.stem for path in profiles.bundled_dir().glob("*.yaml"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Two pulled pairs, a split model in the Hub's cache, and two files in the folder at hand."""
    snapshot = tmp_path / "hf" / "hub" / "models--org--m-GGUF" / "snapshots" / ("c" * 40)
    model = RemoteModel("org/m-GGUF:Q8_0", "org/m-GGUF", "c" * 40, (RemoteFile("m-Q8_0.gguf", 1, "a" * 64),))
    for name in PULLED:
        pairs.save(PulledPair(name, model, None, "2026-01-01"))
    folder = tmp_path / "at hand"
    for path in (
        *(snapshot / name for name in ("m-Q8_0.gguf", "plain.gguf")),
        *(snapshot / "BF16" / f"m-BF16-0000{part}-of-00002.gguf" for part in (1, 2)),
        *(folder / name for name in ("big.gguf", "notes.txt", "sub/small.gguf")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(folder)


def test_a_pair_is_here_if_it_is_whole(here, monkeypatch):
    for whole in (False, True):
        monkeypatch.setattr(PulledPair, "is_whole", lambda _pair, whole=whole: whole)
        assert any("(here)" in about for _, about in completion.pairs("qwen3-8b")) == whole


def test_what_is_broken_hides_nothing_else_and_what_fails_offers_nothing(here, monkeypatch):
    own_profile("broken", "target: [1\n")
    (profiles.config_dir() / "pulled" / "damaged.json").write_text("{")
    assert {"demo", "qwen3-8b"} <= {name for name, _ in completion.pairs("")}
    assert set(PULLED) <= set(completion.pulled_pairs(""))
    assert completion.models("\0") == completion.models("x" * 5000) == []
    monkeypatch.setattr(profiles, "names", None)
    assert completion.pairs("") == completion.models("") == []


def asked(shell: str, line: str) -> dict[str, str]:
    """How a shell's script asks what may follow where Tab is pressed at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": line}
    return {**words, "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_SPECDEC_COMPLETE": f"complete_{shell}"}


def complete(shell: str, line: str) -> list[str]:
    done = CliRunner().invoke(app, [], prog_name="specdec", env=asked(shell, line))
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("specdec show qwen3-3", ["qwen3-30b-a3b", "qwen3-32b", "qwen3-32b-q8"]),
        ("specdec rm ", list(PULLED)),
        ("specdec check demo org/m-GGUF/", ["org/m-GGUF/plain.gguf"]),
        ("specdec run -md sub/", ["sub/small.gguf"]),
        ("specdec run --accept ma", ["match"]),
        ("specdec run --drafter look", ["lookahead"]),
        ("specdec compare --prompts c", ["chat", "code", "creative"]),
        ("specdec tune --what-if h", ["h200"]),
        ("specdec run -fa --accept ma", ["match"]),
        ("specdec nosuch ", [*COMMANDS]),
    ],
)
def test_bash(here, line, offers):
    assert complete("bash", line) == offers


def test_every_offer_is_one_line_and_every_line_an_offer(here):
    """A description that is broken into lines would make offers of its second half."""
    assert [line.split("\t")[0] for line in complete("fish", "specdec show ")] == BUNDLED
    for text in ("[/x] closes nothing", "a 'quote' and \"another\"", "back\\slash $(id)"):
        own_profile("zz", yaml.safe_dump({"target": "x", "description": text}))
        (line,) = complete("fish", "specdec show zz")
        assert line.startswith("zz\t")


def as_specdec(*args: str, **env: str) -> str:
    """In a process, under the command's own name, which scripts and variables are called after."""
    main = "import sys; sys.argv[0] = 'specdec'; from specdec_cli.__main__ import main; main()"
    command = [sys.executable, "-c", main, *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True).stdout


def test_completion_in_a_process_is_quick(here):
    """In seconds of the processor, whatever else the machine does."""
    before = os.times()
    offered = as_specdec(**asked("bash", "specdec show qwen3-3")).split()
    after = os.times()
    assert offered == [name for name in BUNDLED if name.startswith("qwen3-3")]
    assert after.children_user + after.children_system - before.children_user - before.children_system < 2


def test_a_script_for_the_shell():
    script = as_specdec("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_SPECDEC_COMPLETE=complete_bash" in script
