"""What must survive: the answer, through failures of the draft, the target, the baseline and the reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import ggufs
import pytest
from conftest import DEMO
from fakes import Counting, FakeTarget, ScriptedDrafter, run
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.engine import proof
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.generation import GenerationResult, to_json
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.target import LlamaTarget

PROMPT = "def median(values):\n    return"
SPECDEC = [sys.executable, "-m", "specdec_cli"]


def specdec(*args):
    return CliRunner().invoke(app, ["run", PROMPT, "-n", "24", "-k", "3", *map(str, args)])


@pytest.fixture
def failing_target(monkeypatch):
    """The target's fifth verification fails."""
    verify, calls = LlamaTarget.verify, iter(range(100))

    def fail(self, pending, draft):
        if next(calls) == 4:
            raise SpecdecError("the GPU fell off", "Push it back in.")
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", fail)


def test_a_target_that_fails_keeps_the_answer_so_far(failing_target):
    done = specdec()
    assert done.exit_code == 1
    assert done.stdout.strip() and done.stdout.endswith("\n")
    assert "the GPU fell off" in done.stderr and "memory" in done.stderr


def test_a_target_that_fails_keeps_the_json(failing_target):
    done = specdec("--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["completion_tokens"] > 4


def test_a_baseline_that_fails_keeps_the_answer(monkeypatch):
    events, calls = Engine.events, iter(range(2))

    def fail_second(self, *args, **options):
        if next(calls) == 1:
            raise SpecdecError("no more", "")
        return events(self, *args, **options)

    monkeypatch.setattr(Engine, "events", fail_second)
    done = specdec("--baseline")
    assert done.exit_code == 0
    assert "the target alone failed: no more" in " ".join(done.stderr.split())


def test_an_interrupt_while_the_margin_is_measured(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setattr(proof, "divergence", interrupted)
    done = specdec("--baseline", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["baseline"] is None and result["completion_tokens"] == 24


def test_no_baseline_for_a_reader_that_has_gone():
    command = f'"{sys.executable}" -m specdec_cli run -n 600 -k 3 --baseline "def f(x):" | head -c 20'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "speedup" in done.stderr
    assert "differs" not in done.stderr and "0." not in done.stderr.split("speedup")[1].split("\n")[0]


def test_a_draft_that_cannot_be_had_leaves_the_target_alone(monkeypatch):
    init = LlamaContext.__init__

    def fail_for_the_draft(self, model, *args):
        if model.path.name == "draft.gguf":
            raise SpecdecError("no room for a context", "")
        init(self, model, *args)

    monkeypatch.setattr(LlamaContext, "__init__", fail_for_the_draft)
    done, alone = specdec("--json"), specdec("--json", "--drafter", "none")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["tokens"] == json.loads(alone.stdout)["tokens"]
    assert result["stats"]["drafted"] == 0
    assert result["notes"] == ["the draft model is not used: no room for a context"]
    compared = CliRunner().invoke(app, ["compare", PROMPT])
    assert compared.exit_code == 1 and "no room for a context" in compared.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_is_not_utf8_costs_no_answer(encoding):
    done = subprocess.run(
        [*SPECDEC, "run", "-n", "4", "# \u6570\u5b57 \U0001f642\ntext = '\u6570"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("role", ["-m", "-md"])
@pytest.mark.parametrize("name", [b"t5", b"bert", b"nomic-bert-moe"])
def test_a_model_that_does_not_generate_is_refused(tmp_path, name, role):
    path = tmp_path / "encoder.gguf"
    path.write_bytes(ggufs.padded(ggufs.header([ggufs.key("general.architecture", ggufs.STRING, ggufs.text(name))])))
    done = specdec(role, path, *(["-md", DEMO / "draft.gguf"] if role == "-m" else ["-m", DEMO / "target.gguf"]))
    assert done.exit_code == 1
    assert "does not generate text" in done.stderr and len(done.stderr.splitlines()) == 2


def test_messages_obey_no_escapes_from_a_file(tmp_path):
    name = b"bert\x1b]0;x\x07\n"
    path = tmp_path / "hostile.gguf"
    path.write_bytes(ggufs.padded(ggufs.header([ggufs.key("general.architecture", ggufs.STRING, ggufs.text(name))])))
    done = specdec("-m", path, "--drafter", "none")
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_what_is_typed_counts_for_more_than_the_environment(monkeypatch):
    monkeypatch.setenv("SPECDEC_TARGET", "/nowhere.gguf")
    monkeypatch.setenv("SPECDEC_DRAFT", "/nowhere.gguf")
    assert specdec("-p", "demo").exit_code == 0
    assert specdec().exit_code == 1
    monkeypatch.delenv("SPECDEC_TARGET")
    monkeypatch.setenv("SPECDEC_PROFILE", "nobody")
    assert specdec("-m", DEMO / "target.gguf", "-md", DEMO / "draft.gguf").exit_code == 0


def test_a_profile_may_name_the_draft():
    assert specdec("-m", DEMO / "target.gguf", "-md", "demo").exit_code == 0


def test_defaults_are_the_same_wherever_they_are_written():
    ours, sampling = Settings(), SamplingSettings()
    assert (ours.temp, ours.top_k, ours.top_p, ours.min_p) == (
        *(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
    )
    assert (ours.repeat_penalty, ours.frequency_penalty, ours.presence_penalty, ours.repeat_last_n) == (
        *(sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty, sampling.penalty_window),
    )
    text = " ".join(CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "300"}).stdout.split())
    for default in (f"{ours.draft_tokens}", f"{ours.top_k}", f"{ours.top_p:g}", f"{ours.min_p:g}"):
        assert f"[default: {default}]" in text
    assert f"[default: coupled with --seed or --bitwise, else {ours.accept}]" in text


def test_json_of_a_scripted_run(snapshot):
    result = GenerationResult(Settings(draft_tokens=3), 7, [1], ("a note",))
    for event in run(FakeTarget(Counting()), drafter=ScriptedDrafter([(3, 4, 99), (99,), (7, 8), ()]), max_tokens=9):
        result.add(event)
    engine = SimpleNamespace(
        pair=SimpleNamespace(target_path="big.gguf", draft_path="small.gguf", small_path=None),
        costs=SimpleNamespace(measured_s=0.25, agreement=None),
        load_s=0.5,
    )
    found = to_json(result, engine)
    found["timing"] = sorted(found["timing"])
    snapshot("run.json", json.dumps(found, indent=1) + "\n")
