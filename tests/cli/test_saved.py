"""What must survive: answers, files and the terminal, through failures, signals at every moment and full disks."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import ggufs
import pytest
from driver import DRAFT, ESCAPE, SPECDEC, TARGET, assert_refused, call, complaint, run, start, succeeded, told
from driver import specdec as in_a_process
from full_disk import full_disk
from hub_pairs import wait_until
from terminal import Terminal

from specdec_cli.cli.signals import ended_by_signals
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.engine.session import Session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure import saved_comparisons
from specdec_cli.measure.traces import INCOMPLETE, TraceFile, read_trace

PROMPT = "def median(values):\n    return"
LONG = ("run", "def f(x):", "-k", 3, "-c", 16384, "-n", 16000)
BRIEF = ("-m", TARGET, "-md", DRAFT, "--raw", "-k", 2, "-n", 6)

# --- failures ---


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
    command = f'{shlex.join(SPECDEC)} run -n 3000 -c 4096 -k 3 --baseline "def f(x):" | head -c 20'
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


# --- signals ---


def interrupt(process, send: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal; the exit code, and what was still written. It takes 0.3 s, or some seconds on a busy machine."""
    started = time.monotonic()
    process.send_signal(send)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 10.0
    assert b"Traceback" not in err and b"KeyboardInterrupt" not in err
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
def test_interrupted_in_a_long_prefill(tmp_path):
    """Reading this prompt takes half a minute. A terminal shows that it has begun."""
    trace = tmp_path / "trace.jsonl"
    (tmp_path / "long.txt").write_text("def f(x): return x + 1\n" * 2500)
    command = ("run", "-f", tmp_path / "long.txt", "-c", 32768, "--trace", trace)
    with Terminal(*command, streams=("stderr",)) as terminal:
        terminal.read(until="reading prompt")
        assert terminal.ended_by(signal.SIGINT) == 130
        assert terminal.process.stdout.read().strip() == b""
        assert "interrupted after 0 tokens" in terminal.text and "first token" not in terminal.text
    assert [json.loads(line)["event"] for line in trace.read_text().splitlines()] == ["run", "done"]


@pytest.mark.parametrize(
    ("send", "expected"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_interrupted_while_decoding(tmp_path, send, expected):
    trace = tmp_path / "trace.jsonl"
    process = start(*LONG, "--trace", trace)
    first = b""
    while len(first) < 200:
        first += os.read(process.stdout.fileno(), 200 - len(first))
    code, rest, err = interrupt(process, send)
    assert code == expected
    steps = [line for line in map(json.loads, trace.read_text().splitlines()) if line["event"] == "step"]
    text = "".join(token["text"] for step in steps for token in step["tokens"])
    assert len(steps) > 5 and (first.decode() + rest).rstrip("\n") == text.rstrip("\n")
    assert f"interrupted after {sum(len(step['tokens']) for step in steps):,} tokens" in " ".join(err.split())
    assert "kept" in err


@pytest.mark.slow
def test_ctrl_z_does_not_count_as_decoding_time(tmp_path):
    """As under a shell, which gives each command a process group of its own."""
    trace, started = tmp_path / "trace.jsonl", time.monotonic()
    process = start(*LONG[:-1], 4000, "--json", "--trace", trace, preexec_fn=os.setpgrp)
    wait_until(lambda: trace.exists() and trace.stat().st_size > 0, process)
    process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    time.sleep(0.5)
    process.send_signal(signal.SIGCONT)
    code, out, err = interrupt(process)
    took, found = time.monotonic() - started, json.loads(out)
    assert (code, err) == (130, "") and 0 < found["timing"]["ttft_s"] + found["timing"]["decode_s"] < took - 0.5
    assert found["finish_reason"] == "interrupted" and found["completion_tokens"] == len(found["tokens"]) > 0


def test_the_live_view_interrupted_leaves_the_terminal_as_it_was():
    with Terminal(*LONG) as terminal:
        terminal.read(until="tok/s")
        assert terminal.ended_by(signal.SIGINT, within=20) == 130
        shown = terminal.raw.decode()
        assert all(part in shown for part in ("interrupted after", "kept", "^C stop", "\x1b[32m"))
        for private in re.findall(r"\x1b\[\?(\d+)h", shown):  # every mode that was set is reset
            assert shown.rfind(f"{ESCAPE}[?{private}l") > shown.rfind(f"{ESCAPE}[?{private}h")


def test_what_a_signal_raises_in_a_callback_is_lost_without_a_word(monkeypatch):
    """Another error there is told."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_type))
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()
        ctypes.CFUNCTYPE(None)(lambda: 1 // 0)()
    assert (ended.value.code, told) == (143, [ZeroDivisionError])


# --- full disks ---


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording, a page and a picture of it."""
    folder = tmp_path_factory.mktemp("recorded")
    trace = folder / "run.jsonl"
    succeeded("run", *BRIEF, PROMPT, "--trace", trace)
    succeeded("replay", trace, "-o", folder / "page.html", "-o", folder / "run.svg")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("room", [100, 5000])
def test_a_full_disk_costs_no_older_file(recorded, room):
    before = contents(recorded)
    trace = recorded / "run.jsonl"
    with full_disk(min(room, 1000)):
        done = run(*BRIEF, "-q", PROMPT, "--trace", trace)
    assert done.exit_code == 1 and done.stdout and "the trace is not written whole" in done.stderr
    for name in ("page.html", "run.svg"):
        with full_disk(room):
            done = call("replay", trace, "-o", recorded / name)
        assert done.exit_code in (1, 2) and "cannot write" in done.stderr and name in done.stderr
    assert contents(recorded) == before


def test_the_disk_is_not_blamed_for_a_name_that_is_too_long(recorded):
    done = in_a_process("replay", recorded / "run.jsonl", "-o", "x" * 300 + ".html")
    assert_refused(done, 1, "File name too long", "Check its path")


def test_of_a_new_recording_what_there_was_room_for_stays(tmp_path):
    assert_refused(run(*BRIEF, PROMPT, "--trace", tmp_path), 2, "cannot write")
    with full_disk(1000):
        assert run(*BRIEF, "-q", PROMPT, "--trace", tmp_path / "new.jsonl").exit_code == 1
    assert INCOMPLETE in read_trace(tmp_path / "new.jsonl")[1][-1].notes


def test_a_run_without_an_end_leaves_an_older_recording(recorded):
    before = contents(recorded)
    for events in ((), read_trace(recorded / "run.jsonl")[1][:2]):
        trace = TraceFile(recorded / "run.jsonl", {"target": "x"})
        for event in events:
            trace.show(event)
        trace.close()
        assert contents(recorded) == before


def test_a_comparison_that_cannot_be_kept_is_refused_before_or_shown_after():
    kept = ("compare", *BRIEF, "--repeat", 1, PROMPT, "--save", "older")
    succeeded(*kept)
    (path,) = saved_comparisons.path_of("older").parent.iterdir()
    before = path.read_bytes()
    with full_disk(4095):
        assert_refused(call(*kept), 1, "cannot write to")
    assert_refused(call(*kept, XDG_DATA_HOME="/dev/null"), 1, "cannot write to")
    saved_comparisons.path_of("folder").mkdir()
    assert_refused(call(*kept[:-1], "folder"), 1, "it is a folder")
    with full_disk(4096):
        done = call(*kept)
    assert done.exit_code == 1 and "k=2" in done.stdout and "File too large" in done.stderr
    assert path.read_bytes() == before and not list(path.parent.glob("*.tmp"))


def test_no_answer_is_lost_for_want_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    unusable = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path / "file"))
    done = call("run", *BRIEF, "-k", "auto", PROMPT, "--json", **unusable)
    notes = json.loads(done.stdout)["notes"]
    assert done.exit_code == 0 and len(notes) <= 2, notes
    assert call("compare", "--list", **unusable).exit_code == call("ls", **unusable).exit_code == 0


def test_a_full_disk_is_blamed_for_a_copy_that_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with full_disk(5000):
        done = call("draft", "quantize", "-m", TARGET, "--type", "Q2_K", "-o", "draft.gguf")
    assert (done.exit_code, done.stdout) == (1, "")
    what, do = complaint("\n".join(done.stderr.splitlines()[-2:]))  # after what was said of the copy
    assert "the disk has no room for draft.gguf" in what and "Free some space" in do
    assert not list(tmp_path.iterdir())


def test_that_there_is_no_folder_for_temporary_files_is_said(tmp_path, monkeypatch, own_trials):
    new = shutil.copy(TARGET, tmp_path / "new.gguf")  # a child tries it, whose output goes through such a file
    monkeypatch.setattr("tempfile.tempdir", None)
    with full_disk(0):
        done = call("run", "-m", new, "--drafter", "none", PROMPT)
    assert done.exit_code == 1 and done.stderr.startswith("specdec: can't use a temporary file: No usable")
