"""What must survive: the answer, through failures of the draft, the target, the baseline and the reader."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import ggufs
import pytest
from driver import DRAFT, SPECDEC, TARGET, assert_refused, call, told
from driver import specdec as in_a_process

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.engine.session import Session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.target import LlamaTarget

PROMPT = "def median(values):\n    return"


def specdec(*args):
    return call("run", PROMPT, "-n", "24", "-k", "3", *args)


def test_a_target_that_fails_keeps_the_answer_so_far(monkeypatch):
    """The fifth verification fails."""
    verify, calls = LlamaTarget.verify, iter(range(100))

    def fail(self, pending, draft):
        if next(calls) % 5 == 4:
            raise SpecdecError("the GPU fell off", "Push it back in.")
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", fail)
    done, as_json = specdec(), specdec("--json")
    assert done.exit_code == as_json.exit_code == 1
    assert done.stdout.strip() and done.stdout.endswith("\n")
    assert "the GPU fell off" in done.stderr and "interrupted after" in done.stderr
    assert json.loads(as_json.stdout)["completion_tokens"] > 4


def test_a_baseline_that_fails_keeps_the_answer(monkeypatch):
    events, calls = Session.events, iter(range(2))

    def fail_second(self, *args, **options):
        if next(calls) == 1:
            raise SpecdecError("no more", "")
        return events(self, *args, **options)

    monkeypatch.setattr(Session, "events", fail_second)
    done = specdec("--baseline")
    assert done.exit_code == 0
    assert "the target alone failed: no more" in " ".join(done.stderr.split())


def test_an_interrupt_while_the_margin_is_measured(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setattr(Session, "divergence", interrupted)
    monkeypatch.setattr("specdec_cli.engine.session.first_difference", lambda *_: 3)
    result = told("run", PROMPT, "-n", 24, "-k", 3, "--baseline")
    assert result["baseline"] is None and result["completion_tokens"] == 24


@pytest.mark.slow
def test_no_baseline_for_a_reader_that_has_gone():
    command = f'{shlex.join(SPECDEC)} run -n 600 -k 3 --baseline "def f(x):" | head -c 20'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "speedup" in done.stderr
    assert "differs" not in done.stderr and "0." not in done.stderr.split("speedup")[1].split("\n")[0]


def test_a_draft_that_cannot_be_had_leaves_the_target_alone(monkeypatch):
    opened = LlamaContext.open

    def fail_for_the_draft(model, *args):
        if model.path.name == "draft.gguf":
            raise SpecdecError("no room for a context", "")
        return opened(model, *args)

    monkeypatch.setattr(LlamaContext, "open", fail_for_the_draft)
    command = ("run", PROMPT, "-n", 24, "-k", 3)
    result = told(*command)
    assert result["tokens"] == told(*command, "--drafter", "none")["tokens"] and result["stats"]["drafted"] == 0
    assert result["notes"] == ["the draft model is not used: no room for a context"]
    assert_refused(call("compare", PROMPT), 1, "no room for a context")
    assert_refused(call("tune", "--seconds", 1), 1, "no room for a context")


def test_an_output_that_is_not_utf8_costs_no_answer():
    prompt = "# \u6570\u5b57 \U0001f642\ntext = '\u6570"
    done = in_a_process("run", "-n", 4, prompt, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.parametrize(("role", "kind"), [("-m", b"nomic-bert-moe"), ("-md", b"gemma-embedding")])
def test_a_model_that_does_not_generate_is_refused(tmp_path, role, kind):
    path, name = tmp_path / "encoder.gguf", ggufs.text(kind)
    path.write_bytes(ggufs.padded(ggufs.header([ggufs.key("general.architecture", ggufs.STRING, name)])))
    assert_refused(specdec("-m", TARGET, "-md", DRAFT, role, path), 1, "does not generate text")


def test_what_is_typed_counts_for_more_than_the_environment(monkeypatch):
    monkeypatch.setenv("SPECDEC_TARGET", "/nowhere.gguf")
    monkeypatch.setenv("SPECDEC_DRAFT", "/nowhere.gguf")
    assert specdec("-p", "demo").exit_code == 0
    assert specdec().exit_code == 2
    monkeypatch.delenv("SPECDEC_TARGET")
    monkeypatch.setenv("SPECDEC_PROFILE", "nobody")
    assert specdec("-m", TARGET, "-md", DRAFT).exit_code == specdec("-m", TARGET, "-md", "demo").exit_code == 0
