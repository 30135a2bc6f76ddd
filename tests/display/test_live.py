"""The live view, on an emulated terminal: what is on the screen, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pyte
import pytest
from fakes import Counting, FakeTarget, ScriptedDrafter, run
from rich.console import Console

from specdec_cli.decoding.types import Done, Prefill, Step, Token
from specdec_cli.display.live import LiveDisplay


class Terminal:
    """A terminal of a given size with scrollback, fed by a LiveDisplay whose clock we set."""

    def __init__(self, monkeypatch, width=60, height=20, **console):
        self.now = 0.0
        monkeypatch.setattr("specdec_cli.display.live.monotonic", lambda: self.now)
        self.screen = pyte.HistoryScreen(width, height, history=5000, ratio=1)
        self.stream = pyte.Stream(self.screen)
        self.screen.set_mode(pyte.modes.LNM)
        options = {"force_terminal": True, "color_system": "standard", "_environ": {}, **console}
        self.console = Console(file=StringIO(), width=width, height=height, **options)
        self.writes, self.output = 0, ""
        self.display = LiveDisplay(self.console, 128)

    def show(self, *events, later=1.0):
        for event in events:
            self.now += later
            self.display.show(event)
            self.drain()
        return self

    def drain(self):
        text = self.console.file.getvalue()
        self.console.file.seek(0)
        self.console.file.truncate()
        self.writes += bool(text)
        self.output += text
        self.stream.feed(text)

    def lines(self):
        history = ("".join(line[i].data for i in range(self.screen.columns)) for line in self.screen.history.top)
        return [line.rstrip() for line in (*history, *self.screen.display)]

    def text(self):
        return "\n".join(self.lines()).rstrip("\n")


def step(text, index=1, at=1.0, drafted=(), rejected=()):
    return Step(index, (Token(0, text, "plain"),), drafted, 0, rejected, "", 0.1, 0.2, 0.0, at)


def done(tail=""):
    return Done("stop", tail, (), 2.0)


def scripted(*drafts, max_tokens=8):
    return run(FakeTarget(Counting()), drafter=ScriptedDrafter(list(drafts)), max_tokens=max_tokens)


def written(terminal, *texts):
    """Show these texts, a step each, and the end."""
    return terminal.show(*map(step, texts), done())


def test_the_screen_of_a_scripted_run(monkeypatch, snapshot):
    terminal = Terminal(monkeypatch, width=70)
    events = scripted((3, 4, 99), (99,), (7, 8), max_tokens=9)
    screens = [terminal.text()]
    for i, event in enumerate(events):
        times = {"draft_s": 0.1, "verify_s": 0.25, "sample_s": 0.05} if isinstance(event, Step) else {}
        terminal.show(replace(event, at=0.5 * i, **times))
        screens.append(f"--- {type(event).__name__}\n{terminal.text()}")
    assert screens[-1] == "--- Done\n2 3 4 5 6 7 8 9 10", "the text and nothing else is left"
    snapshot("live.txt", "\n".join(line.rstrip() for line in "\n".join(screens).split("\n")) + "\n")


def test_the_prompt_is_shown_being_read_and_the_first_token_does_not_wait_for_the_drafts(monkeypatch):
    terminal = Terminal(monkeypatch)
    terminal.drain()
    assert "reading the prompt" in terminal.text()
    monkeypatch.setattr("specdec_cli.display.status_line.monotonic", lambda: terminal.now)
    terminal.display.reading("target", 0, 150)
    terminal.now = 2.0
    terminal.display.reading("target", 50, 150)
    terminal.drain()
    assert "reading target ━━━━──────── 50/150, 4 s left" in terminal.text()
    terminal.show(Prefill("target", 3, 0.1, 0.1), step("first", index=0, at=0.11), later=0.001)
    assert terminal.text().startswith("first")


def test_origins_differ_by_more_than_colour(monkeypatch):
    terminal = Terminal(monkeypatch, no_color=True)
    terminal.show(*scripted((3, 4, 99), (6,), max_tokens=7)[:5])
    row = terminal.screen.buffer[0]
    look = [(row[x].bold, row[x].underscore, row[x].fg) for x in range(0, 12, 2)]
    plain, accepted, correction, bonus = look[0], look[1], look[3], look[5]
    assert plain == accepted == (False, False, "default")
    assert correction == (True, False, "default") and bonus == (False, True, "default")
    assert not any(terminal.screen.buffer[1][x].strikethrough for x in range(60)), "the last draft was accepted whole"


def test_rejected_tokens_are_struck_out(monkeypatch):
    terminal = Terminal(monkeypatch).show(*scripted((3, 99, 98), max_tokens=9)[:4])
    row = terminal.screen.buffer[1]
    assert "".join(row[x].data for x in range(60) if row[x].strikethrough).split() == ["99", "98"]


def test_at_most_twelve_repaints_a_second(monkeypatch):
    terminal = Terminal(monkeypatch).show(*[step("x")] * 1000, later=0.001)
    assert 10 <= terminal.writes <= 13


def test_lines_and_long_lines_reach_the_scrollback_unharmed(monkeypatch):
    long = "".join(chr(97 + i % 26) for i in range(500))
    texts = [*(f"line {i}\n" for i in range(50)), *(long[i : i + 7] for i in range(0, 500, 7))]
    lines = Terminal(monkeypatch, width=30, height=10).show(*map(step, texts), done("!")).lines()
    assert lines[:50] == [f"line {i}" for i in range(50)]
    assert "".join(lines[50:]) == long + "!"


def test_indentation_and_blank_lines_survive(monkeypatch):
    text = "def f():\n\n    if x:\n        return   1\n\n\n" + " " * 40 + "far\n"
    terminal = written(Terminal(monkeypatch, width=30), *text)
    assert terminal.lines()[:6] == ["def f():", "", "    if x:", "        return   1", "", ""]
    assert "".join(terminal.lines()[6:8]).strip() == "far"


@pytest.mark.parametrize(("before", "after"), [(60, 30), (60, 100), (60, 21), (30, 90)])
def test_resizing_leaves_no_debris(monkeypatch, before, after):
    words = [step(f"w{i} ", drafted=(1,), rejected=("zzz",)) for i in range(8)]
    terminal = Terminal(monkeypatch, width=before, height=30).show(step("first\n"), *words[:5])
    # A real terminal rewraps what is on it; pyte does not, so paint anew at the new width from a rewrapped copy.
    rows = [line.rstrip() for line in terminal.screen.display if line.strip()]
    terminal.screen = pyte.HistoryScreen(after, 30, history=5000, ratio=1)
    terminal.screen.set_mode(pyte.modes.LNM)
    terminal.stream = pyte.Stream(terminal.screen)
    terminal.stream.feed("\n".join(rows))
    terminal.console.width = after
    terminal.show(*words[5:], done())
    assert terminal.text().replace("\n", " ").split() == ["first", *(f"w{i}" for i in range(8))]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 2), (5, 3), (10, 4), (20, 2)])
def test_tiny_terminals(monkeypatch, width, height):
    terminal = written(Terminal(monkeypatch, width=width, height=height), *(f"word{i} " for i in range(50)))
    assert "".join(terminal.lines()).replace(" ", "").endswith("word49")


def test_wide_characters_wrap_by_cells(monkeypatch):
    text = "数字漢字" * 20
    assert "".join(written(Terminal(monkeypatch, width=11, height=12), *text).lines()).replace(" ", "") == text


def test_escapes_from_the_model_are_shown_not_obeyed(monkeypatch):
    terminal = written(Terminal(monkeypatch), "a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\x00")
    assert terminal.text() == "a␛[2Jb␛]0;title␇c␍d\ufffd31me\ufffdf␀"
    assert terminal.screen.title == ""


@pytest.mark.parametrize("width", [20, 40, 57, 60])
def test_closing_early_keeps_the_text_and_the_echo_of_ctrl_c_repeats_no_line(monkeypatch, width):
    long = step("first\nsecond", drafted=(1, 2, 3), rejected=("a long draft",) * 5)
    terminal = Terminal(monkeypatch, width=width).show(long)
    terminal.stream.feed("^C")
    terminal.display.close()
    terminal.display.close()
    terminal.drain()
    assert terminal.text() == "first\nsecond"


def test_no_terminal_mode_is_left_changed(monkeypatch):
    output = Terminal(monkeypatch).show(*scripted((3, 99), max_tokens=20)).output
    assert "\x1b[?25l" not in output and "\x1b[?1049h" not in output
    assert output.count("\x1b[?2026h") == output.count("\x1b[?2026l") > 0
    assert output.removesuffix("\x1b[?2026l").endswith("\n")
