"""A recorded run comes back as it was: plain, live, key by key, as a picture; and a file that is none is refused."""

import html
import json
import math
import re
import signal
import termios
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import pytest
from driver import assert_refused, call, succeeded
from recorded import events, step
from terminal import Terminal

from specdec_cli.cli import replay as replay_command
from specdec_cli.decoding.types import Done, Prefill, Token
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.measure.traces import INCOMPLETE, TraceFile, event_json, read_trace

SETTINGS = {"target": "/models/big.gguf", "draft": "small.gguf", "draft_tokens": 3, "max_tokens": 9, "temperature": 0.0}


TEXT = "first kept <b>mended</b>\nsame  extra!\n"


def record(path, run=None, settings=SETTINGS):
    trace = TraceFile(path, settings)
    for event in events() if run is None else run:
        trace.show(event)
    trace.close()
    return path


@pytest.fixture
def trace(tmp_path):
    return record(tmp_path / "run.jsonl")


def replay(*args):
    return call("replay", *args)


def on_terminal(*args, **options):
    return Terminal("replay", *args, size=(30, 100), **options)


# --- what was recorded comes back ---------------------------------------------------------------------------------


def test_a_real_run_replays_to_the_same_text(tmp_path):
    trace = tmp_path / "run.jsonl"
    options = ["-n", 24, "-k", 3, "-t", 1, "--temp", 0.9, "--seed", 5, "--trace", trace]
    run = succeeded("run", "def median(values):", "-v", *options)
    again = succeeded("replay", "-v", trace)
    assert again.stdout == run.stdout and len(run.stdout) > 30
    assert "k=3, temp=0.9, accept=coupled, seed=5" in again.stderr
    same = ("drafts", "lengths", "acceptance", "by position", "steps", "speed ", "decoding", "prompt")
    for line in again.stderr.splitlines():
        assert not line.startswith(same) or line.rstrip() in run.stderr
    assert "memory" in run.stderr and "memory" not in again.stderr and "speedup" not in again.stderr


def test_events_are_rebuilt_as_they_were(trace):
    assert read_trace(trace) == (SETTINGS, events())
    trace.write_text(trace.read_text().rstrip("\n"))
    assert read_trace(trace)[1] == events(), "without the last line break nothing is missing"


def test_the_speedup_over_steps_without_drafts_comes_back(tmp_path):
    run = [step(0, 0.0, Token(1, "a", "plain"))]
    for drafted in ([(2, 3)] * 4 + [()] * 3) * 3 + [(2, 3)]:
        tokens = [Token(token, "b", "accepted") for token in drafted] + [Token(4, "c", "plain")]
        run.append(step(len(run), run[-1].at + (0.3 if drafted else 0.2), *tokens, drafted=drafted))
        run[-1] = run[-1] if drafted else replace(run[-1], draft_s=0.0)
    run.append(Done("stop", "", (), run[-1].at))
    fast, page, svg = "1.68x as fast as the target alone", tmp_path / "run.html", tmp_path / "run.svg"
    trace = record(tmp_path / "auto.jsonl", run, {**SETTINGS, "draft_tokens": "auto"})
    assert fast in replay(trace, "-o", page, "-o", svg).stderr
    assert "as fast as" in page.read_text("utf-8") and "1.68x" in svg.read_text("utf-8")
    fixed = replay(record(tmp_path / "fixed.jsonl", run)).stderr
    assert "as fast as" not in fixed, "as after the run"


def test_a_pipe_gets_the_text_at_once(tmp_path):
    started = time.monotonic()
    result = replay(record(tmp_path / "slow.jsonl", events(scale=1000)))
    assert (result.exit_code, result.stdout) == (0, TEXT)
    assert time.monotonic() - started < 30, "the run took 1000 s"
    assert "the model ended its answer after 5 tokens; big.gguf + small.gguf, k=3, greedy" in result.stderr
    bare = replay(record(tmp_path / "bare.jsonl", settings={"max_tokens": "many"}))
    assert (bare.exit_code, bare.stdout) == (0, TEXT)
    assert "5 tokens\n" in bare.stderr and "None" not in bare.stderr


@pytest.mark.parametrize(("keep", "torn"), [(1, ""), (3, ""), (5, '{"event": "st')])
def test_cut_short(trace, keep, torn):
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:keep]) + torn)
    at = events()[keep - 2].at if keep > 1 else 0.0
    assert read_trace(trace)[1] == [*events()[: keep - 1], Done("interrupted", "", (INCOMPLETE,), at)]
    result = replay(trace)
    assert result.exit_code == 0 and TEXT.startswith(result.stdout.rstrip("\n"))
    assert f"note: {INCOMPLETE}" in result.stderr and "interrupted after" in result.stderr


# --- what is no recording -----------------------------------------------------------------------------------------

RUN = '{"event": "run", "format": 1}\n'
DONE = '{"event": "done", "reason": "stop", "tail": "", "notes": [], "at": 1}\n'


def changed(number, run=None, **changes):
    """A whole trace with some fields of an event changed; a field set to ... is left out."""
    lines = [event_json(event) for event in run or events()]
    lines[number] = {name: value for name, value in {**lines[number], **changes}.items() if value is not ...}
    return RUN + "".join(json.dumps(line) + "\n" for line in lines)


def tree_events():
    """A tree of two first choices and two below the second of them; the second, and the first below it, stand."""
    tokens = Token(20, "kept ", "accepted", 0.5), Token(40, "deep ", "accepted", 0.6), Token(60, "own ", "correction")
    drafts = step(1, 0.5, *tokens, drafted=(10, 20, 30, 40, 50), rejected=("elder ", "uncle ", "below "))
    return [
        Prefill("target", 4, 0.01, 0.01),
        step(0, 0.1, Token(1, "first ", "plain")),
        replace(drafts, parents=(-1, -1, 0, 1, 3), path=(1, 3)),
        Done("stop", "", (), 1.0),
    ]


TOKEN = {"id": 1, "text": "x", "origin": "plain"}
BAD = {
    "empty": ("", "is empty"),
    "a list": ("[1]\n", "line 1 is not a JSON object"),
    "no first line": (DONE, "line 1 does not start a recorded run"),
    "another format": (RUN.replace("1", "2"), "reads format 1"),
    "torn in the middle": (RUN + '{"event": \n' + DONE, "line 2 is not JSON"),
    "nested": (RUN + "[" * 100_000 + "\n", "line 2 is not JSON"),
    "unknown event": (RUN + '{"event": "dance"}\n' + DONE, "line 2 has an unknown event, 'dance'"),
    "after the end": (RUN + DONE + DONE, "line 2 ends the run, but more events follow"),
    "no time": (changed(1, at=...), "line 3 is a damaged step: "),
    "a great time": (changed(0, seconds=10**400), "line 2 is not JSON"),
    "a negative time": (changed(4, at=-1), "line 6 is a damaged done: 'at' = -1"),
    "another reason": (changed(4, reason="bored\x1b"), "line 6 is a damaged done: "),
    "half a character": (changed(1, tokens=[{**TOKEN, "text": "\ud83d"}]), "half a surrogate pair in 'text'"),
    "a chance above 1": (changed(1, tokens=[{**TOKEN, "p": 7}]), "'p' = 7"),
    "accepted more than drafted": (changed(2, accepted=10**9), "a damaged step: more tokens accepted than drafted"),
    "parents without a path": (changed(2, parents=[-1, 0, 1]), "line 4 is a damaged step: "),
    "a path without parents": (changed(2, path=[0]), "line 4 is a damaged step: "),
    "too few parents": (changed(2, parents=[-1, 0], path=[0]), "line 4 is a damaged step: "),
    "a parent of itself": (changed(2, parents=[-1, 1, 0], path=[0]), "line 4 is a damaged step: "),
    "a longer path than accepted": (changed(2, parents=[-1, 0, 1], path=[0, 1]), "line 4 is a damaged step: "),
    "a path of nobody": (changed(2, parents=[-1, 0, 1], path=[7]), "line 4 is a damaged step: "),
    "a path below the tree": (changed(2, parents=[-1, 0, 1], path=[-1]), "line 4 is a damaged step: "),
    "a path across branches": (changed(2, tree_events(), path=[1, 4]), "the draft is not a tree"),
}


@pytest.mark.parametrize(("content", "says"), BAD.values(), ids=BAD)
def test_no_recording(tmp_path, content, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    assert assert_refused(replay(path), 1, says, "bad.jsonl").isprintable()


def test_no_file_and_what_makes_no_sense(trace, tmp_path):
    assert_refused(replay(tmp_path / "none.jsonl"), 2, "No such file")
    assert_refused(replay(tmp_path), 2, "Is a directory")
    for speed in ("0", "nan"):
        assert_refused(replay(trace, "--speed", speed), 2, f"speed can't be {speed}")
    assert_refused(replay(trace, "--step"), 2, "--step needs a terminal")
    assert_refused(replay(trace, "--step", "--speed", 2), 2, "--step waits for keys")


# --- on a terminal ------------------------------------------------------------------------------------------------


def test_each_step_is_shown_when_its_time_has_come(monkeypatch):
    """A clock that goes on only while it is slept, so that a busy machine does not matter."""
    now = [7.0]
    monkeypatch.setattr(replay_command, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    interrupt = SimpleNamespace(clock=lambda: now[0], is_set=lambda: False, POLL_S=Interrupt.POLL_S)
    for speed, times in ((0.5, [0.02, 0.2, 0.8, 1.6, 1.8]), (1.0, [0.01, 0.1, 0.4, 0.8, 0.9]), (math.inf, [0] * 5)):
        began, wait = now[0], replay_command._clock(interrupt, speed)
        assert [wait(event) and round(now[0] - began, 6) for event in events()] == times


def test_step_by_step(trace):
    with on_terminal(trace, "--step") as terminal:
        assert "first " not in terminal.read(until="prompt of 4 tokens")
        terminal.press(b"x\x1b[A")  # keys that mean nothing
        terminal.press(b" ")
        assert "first" in terminal.read(until="over the prompt")
        terminal.press(b"\r")
        screen = terminal.read(until="unseen").split("\n")
        assert screen[0] == "first kept <b>mended</b>"
        table = [line.split() for line in screen if line.startswith((" ", "──"))]
        assert table[1] == ["1", "kept␣", "accepted", "p", "0.750", "███████▌", "q", "0.500", "█████"]
        assert table[3] == ["<b>mended</b>⏎", "correction", "p", "0.250", "██▌"]
        assert [row[1:3] for row in (table[2], table[4])] == [["wrong␣", "rejected"], ["unseen⏎", "dropped"]]
        terminal.press(b"\x1b[C")
        assert "1 drafted by model, 1 accepted, and a bonus token" in terminal.read(until="step 2")
        terminal.press(b"\n")
        assert terminal.ended() == 0
        assert terminal.text.startswith(TEXT + "kept") and "the model ended its answer" in terminal.text
        assert "step 2" not in terminal.text and "note" not in terminal.text


@pytest.mark.slow
def test_a_signal_step_by_step(trace):
    with on_terminal(trace, "--step") as terminal:
        terminal.read(until="q: leave")
        assert termios.tcgetattr(terminal.side) != terminal.before
        terminal.press(b"  ")
        terminal.read(until="unseen")
        assert terminal.ended_by(signal.SIGQUIT) == 131
        assert terminal.text.startswith("first kept <b>mended</b>") and "unseen" not in terminal.text


def test_suspended_and_interrupted_step_by_step(trace):
    """By keys, in a shell that has jobs, and that keeps the terminal after it."""
    shell = ["bash", "-c", 'set -m; "$@"; echo "[stopped]"; read -r; fg; echo "[code $?]"; read -r', "bash"]
    with on_terminal(trace, "--step", under=shell) as terminal:
        terminal.read(until="q: leave")
        raw = termios.tcgetattr(terminal.side)
        terminal.press(b"\x1a")
        terminal.read(until="[stopped]")
        assert termios.tcgetattr(terminal.side) == terminal.before != raw
        terminal.press(b"\r")
        terminal.read(until="prompt of 4 tokens")
        terminal.press(b" ")
        terminal.read(until="1/9")
        terminal.press(b"\x03")
        assert "interrupted after 1 token;" in terminal.read(until="[code 130]")
        terminal.press(b"\r")
        assert terminal.ended() == 0


def test_a_tree_step_by_step_that_is_left_early(tmp_path):
    path = record(tmp_path / "run.jsonl", tree_events())
    assert read_trace(path)[1] == tree_events()
    with on_terminal(path, "--step") as terminal:
        terminal.read(until="prompt of 4 tokens")
        terminal.press(b" ")
        terminal.read(until="over the prompt")
        terminal.press(b" ")
        screen = terminal.read(until="below")
        assert "5 drafted by model in a tree, 2 accepted, then corrected" in screen
        rows = [line.split()[:5] for line in screen.split("\n") if "␣" in line]
        assert [row if "after" in row else row[:3] for row in rows] == [
            ["1", "elder␣", "rejected"],
            ["1", "kept␣", "accepted"],
            ["2", "deep␣", "accepted"],
            ["3", "below␣", "rejected"],
            ["own␣", "correction"],
            ["2", "uncle␣", "dropped", "after", "elder␣"],
        ]
        assert terminal.ended_by(b"q") == 0 and terminal.text.startswith("first kept deep own")
        assert "below" not in terminal.text and "you left early" in terminal.text


# --- pictures -----------------------------------------------------------------------------------------------------


def drawn(run, folder):
    """The contents of an SVG, and its text without its styles."""
    file = folder / "run.svg"
    assert succeeded("replay", run, "-o", file).stdout
    picture = file.read_text("utf-8")
    body = re.sub(r"<(style|title)\b.*?</\1>", "", picture, flags=re.DOTALL)
    return picture, html.unescape(re.sub(r"<[^>]*>", "", body)).replace("\xa0", " ")


def test_a_picture(trace, tmp_path):
    picture, text = drawn(trace, tmp_path)
    for part in (*TEXT.splitlines(), "kept", "corrected", "bonus", "acceptance", "big.gguf", "draft tokens kept"):
        assert part in text
    assert "<b>" not in picture and "&lt;b&gt;mended" in picture
    links = re.sub(r'xmlns="http://www\.w3\.org/2000/svg"', "", picture)
    assert not re.search(r"http|//\w|url\((?!#)|@import|@font-face", links)


def test_a_picture_of_odd_text(tmp_path):
    text = "\x1b[2J {code} {{ \\ & ]]> </style> #000000 http \ufffe\uffff 漢字 😀\t|" + "x" * 300
    odd = [step(0, 0.1, Token(1, text, "plain")), Done("length", "", (), 0.2)]
    _, shown = drawn(record(tmp_path / "run.jsonl", odd, {"target": "[red]\udcff.gguf", "temperature": 0}), tmp_path)
    assert "[red]\ufffd.gguf, " in shown
    assert "␛[2J {code} {{ \\ & ]]> </style> #000000 http " in shown and "漢字 😀" in shown
    assert "".join(ET.parse(tmp_path / "run.svg").getroot().itertext()).count("x") >= 300


def test_exports_that_cannot_be_written(trace, tmp_path):
    before = trace.read_bytes()
    (tmp_path / "page.html").mkdir()
    assert_refused(replay(trace, "-o", tmp_path / "no" / "run.svg"), 2, "No such file")
    assert_refused(replay(trace, "-o", tmp_path), 2, "neither a page nor a picture")
    assert_refused(replay(trace, "-o", tmp_path / "page.html"), 2, "Is a directory")
    page = trace.rename(tmp_path / "run.html")
    assert_refused(replay(page, "-o", page), 2, "the recording itself")
    assert page.read_bytes() == before
