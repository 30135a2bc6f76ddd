"""Ctrl-C and SIGTERM at every moment: nothing is lost, nothing is left behind."""

import ctypes
import json
import os
import re
import signal
import sys
import time

import pytest
from driver import ESCAPE, start
from hub_pairs import wait_until
from terminal import Terminal

from specdec_cli.cli.signals import ended_by_signals

LONG = ("run", "def f(x):", "-k", 3, "-c", 16384, "-n", 16000)


def interrupt(process, send: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal; the exit code, and what was still written. 0.3 s, and a process's end on a busy machine."""
    started = time.monotonic()
    process.send_signal(send)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 4.0
    assert b"Traceback" not in err and b"KeyboardInterrupt" not in err
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
def test_interrupted_in_a_long_prefill(tmp_path):
    """Reading this prompt takes half a minute; loading the models, a fraction of a second."""
    trace = tmp_path / "trace.jsonl"
    (tmp_path / "long.txt").write_text("def f(x): return x + 1\n" * 2500)
    process = start("run", "-f", tmp_path / "long.txt", "-c", 32768, "--trace", trace)
    wait_until(trace.exists, process)
    time.sleep(2)
    code, out, err = interrupt(process)
    assert (code, out.strip()) == (130, "")
    assert "interrupted after 0 tokens" in err and "first token" not in err
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
    assert f"interrupted after {sum(len(step['tokens']) for step in steps)} tokens" in " ".join(err.split())
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


def test_interrupted_in_the_live_view_leaves_the_terminal_as_it_was():
    with Terminal(*LONG) as terminal:
        terminal.read(until="tok/s")
        assert terminal.ended_by(signal.SIGINT, within=20) == 130
        shown = terminal.raw.decode()
        assert "interrupted after" in shown
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
