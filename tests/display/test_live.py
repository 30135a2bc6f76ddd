"""The live view, on an emulated terminal: what is on the screen, and what it costs."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from unicodedata import normalize

import pyte
import pytest
from fakes import Counting, FakeTarget, ScriptedDrafter, run
from wcwidth import wcwidth

from specdec_cli.decoding.types import Done, Prefill, Step, Token
from specdec_cli.display.live import LiveDisplay
from specdec_cli.display.steps import StepDisplay
from specdec_cli.display.terminal import SafeConsole


class Screen(pyte.HistoryScreen):
    """A screen that knows which rows it has wrapped, as terminals do that copy a wrapped line as one.

    A row is no longer wrapped once it, or the whole row below it, has been erased.
    """

    def draw(self, data):
        for char in data:
            early = wcwidth(char) == 2 and self.cursor.x == self.columns - 1  # pyte would write it into half a cell
            if early or (self.cursor.x == self.columns and wcwidth(char)):
                self.buffer[self.cursor.y].wrapped = self.columns - early
                self.cursor.x = self.columns
            if self.cursor.x == self.columns and not wcwidth(char):  # pyte would wrap before it
                cell = self.buffer[self.cursor.y][self.columns - 1]
                self.buffer[self.cursor.y][self.columns - 1] = cell._replace(data=normalize("NFC", cell.data + char))
            else:
                super().draw(char)

    def erase_in_display(self, how=0, *args, **kwargs):
        super().erase_in_display(how, *args, **kwargs)
        for y in range(self.cursor.y - (self.cursor.x == 0), self.lines):
            self.buffer[y].wrapped = 0

    def copied(self):
        """All lines as a terminal copies them."""
        text = ""
        for line in (*self.history.top, *(self.buffer[y] for y in range(self.lines))):
            row = [line[x].data for x in range(self.columns)]
            wrapped = getattr(line, "wrapped", 0)
            text += "".join(row[:wrapped]) if wrapped else "".join(row).rstrip() + "\n"
        return text.rstrip("\n")


class Terminal:
    """A terminal of a given size with scrollback, fed by a LiveDisplay whose clock we set."""

    def __init__(self, monkeypatch, width=60, height=20, **console):
        self.now = 0.0
        monkeypatch.setattr("specdec_cli.display.live.monotonic", lambda: self.now)
        self.resize(width, height)
        options = {"force_terminal": True, "color_system": "standard", "_environ": {}, **console}
        self.console = SafeConsole(file=StringIO(), width=width, height=height, **options)
        self.writes = 0
        self.display = LiveDisplay(self.console, 128)

    def resize(self, width, height):
        self.screen = Screen(width, height, history=5000, ratio=1)
        self.stream = pyte.Stream(self.screen)
        self.screen.set_mode(pyte.modes.LNM)

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
        self.stream.feed(text.replace("\u200d", ""))  # pyte drops what follows a joiner

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
    monkeypatch.setattr("specdec_cli.display.terminal.monotonic", lambda: terminal.now)
    terminal.display.reading("prompt", 0, 150)
    terminal.now = 2.0
    terminal.display.reading("prompt", 50, 150)
    terminal.drain()
    assert "reading prompt ━━━━──────── 50/150, 4 s left" in terminal.text()
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


def test_the_speedup_is_shown_once_there_is_an_interval(monkeypatch):
    """Of drafts that give 4 tokens in 0.4 s, between probes that take 0.2 s a token."""
    terminal, at = Terminal(monkeypatch, width=80), 0.0
    four, shown = (Token(0, "x", "accepted"),) * 4, []
    for index in range(40):
        plain = index % 10 > 6
        at += 0.2 if plain else 0.4
        if plain:
            event = Step(index, four[:1], (), 0, (), "", 0.0, 0.2, 0.0, at)
        else:
            event = Step(index, four, (1, 1, 1), 3, (), "model", 0.1, 0.3, 0.0, at)
        shown.append(terminal.show(event).text())
    assert not any("x (" in text for text in shown[:30])
    assert "1.82x (1.79 to 1.85)   9.1 tok/s   alone 5.0   " in shown[-1] and "▁" in shown[-1] and "█" in shown[-1]


def test_at_most_twelve_repaints_a_second(monkeypatch):
    terminal = Terminal(monkeypatch).show(*[step("x")] * 1000, later=0.001)
    assert 10 <= terminal.writes <= 13


@pytest.mark.parametrize(("width", "height"), [(30, 12), pytest.param(11, 6, marks=pytest.mark.slow)])
def test_what_scrolls_away_copies_as_it_was_written(monkeypatch, width, height):
    """Lines longer than the region, and than the screen; wide characters, and signs that combine."""
    words = [f" word{i}" for i in range(40)]
    texts = ["short\n\n", *words, "\n", "    indented\n", *("数字漢字" * 12), "\n", *["e\u0301"] * 50, "\n", "x" * 100]
    terminal = Terminal(monkeypatch, width=width, height=height).show(*map(step, texts))
    copied = terminal.screen.copied()
    terminal.show(done("."))
    assert terminal.screen.copied().split("\n") == normalize("NFC", "".join(texts) + ".").split("\n")
    assert copied.startswith("short\n\n"), "and before the end"


@pytest.mark.parametrize(
    "emoji", ["\U0001f468\u200d\U0001f4bb", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f"]
)
@pytest.mark.parametrize("first", [0, pytest.param(60, marks=pytest.mark.slow)])
def test_emoji_that_the_terminal_does_not_join_leave_no_debris(monkeypatch, emoji, first):
    """In a line that is longer than the region, and in one that has scrolled away in part before the first of them."""
    words = [f"word{i} " if i % 4 or i < first else f"{emoji} " for i in range(100)]
    shown = "".join(written(Terminal(monkeypatch, width=41), *words).text().split())
    assert shown.replace("\ufe0f", "") == re.sub("[ \u200d\ufe0f]", "", "".join(words))


def test_ctrl_z_leaves_the_screen_to_the_shell_and_fg_paints_anew(monkeypatch):
    terminal = Terminal(monkeypatch, width=30).show(step("first\n"), step("second"))
    with terminal.display.suspended():
        terminal.drain()
        assert terminal.text() == "first"
        terminal.stream.feed("[1]+ Stopped\n$ fg\n")
    terminal.drain()
    assert terminal.lines()[:5] == ["first", "[1]+ Stopped", "$ fg", "second", "─" * 27]
    terminal.show(step(" third"), done())
    assert terminal.text() == "first\n[1]+ Stopped\n$ fg\nsecond third"
    with terminal.display.suspended():
        pass
    assert terminal.console.file.getvalue() == "", "nothing is painted after the end"


def test_each_step_is_painted_once_and_never_while_the_shell_has_the_screen(monkeypatch):
    console = Terminal(monkeypatch).console
    display, held = StepDisplay(console, 9), []
    monkeypatch.setattr(display, "_repaint", lambda: held.append(display._lock.locked()))
    for event in (Prefill("target", 4, 0.1, 0.1), step("a"), step("b")):
        display.show(event)
    assert held == [True] * 3


def test_a_step_of_many_tokens_shows_its_ends_and_the_keys(monkeypatch):
    console, texts = Terminal(monkeypatch, width=80).console, [f"token{i}" for i in range(40)]
    tokens = tuple(Token(i, text, "accepted") for i, text in enumerate(texts))
    tokens += (Token(99, "mended", "correction"),)
    many = Step(1, tokens, (*range(44),), 40, ("lost",) * 4, "", 0.1, 0.2, 0.0, 1.0)
    display = StepDisplay(console, 128)
    display.show(many)
    rows = [text.plain for text in display._panel(80, console.height)]
    assert len(rows) == console.height - 2 and rows[-1].startswith("space: ")
    assert "token0" in rows[1] and "lost" in rows[-4] and "more" in " ".join(rows)


@pytest.mark.parametrize(("before", "after"), [(60, 100), (60, 21)])
def test_resizing_leaves_no_debris(monkeypatch, before, after):
    words = [step(f"w{i} ", drafted=(1,), rejected=("zzz",)) for i in range(8)]
    terminal = Terminal(monkeypatch, width=before, height=30).show(step("first\n"), *words[:5])
    # A real terminal rewraps what is on it; pyte does not, so paint anew at the new width from a rewrapped copy.
    rows = [line.rstrip() for line in terminal.screen.display if line.strip()]
    terminal.resize(after, 30)
    terminal.stream.feed("\n".join(rows))
    terminal.console.width = after
    terminal.show(*words[5:], done())
    assert terminal.text().replace("\n", " ").split() == ["first", *(f"w{i}" for i in range(8))]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (20, 2)])
def test_tiny_terminals(monkeypatch, width, height):
    terminal = written(Terminal(monkeypatch, width=width, height=height), *(f"word{i} " for i in range(50)))
    assert "".join(terminal.lines()).replace(" ", "").endswith("word49")


def test_escapes_from_the_model_are_shown_not_obeyed(monkeypatch):
    terminal = written(Terminal(monkeypatch), "a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\x00")
    assert terminal.text() == "a␛[2Jb␛]0;title␇c␍d\ufffd31me\ufffdf␀"
    assert terminal.screen.title == ""


@pytest.mark.parametrize("width", [20, 57])
def test_closing_early_keeps_the_text_and_the_echo_of_ctrl_c_repeats_no_line(monkeypatch, width):
    long = step("first\nsecond", drafted=(1, 2, 3), rejected=("a long draft",) * 5)
    terminal = Terminal(monkeypatch, width=width).show(long)
    terminal.stream.feed("^C")
    terminal.display.close()
    terminal.display.close()
    terminal.drain()
    assert terminal.text() == "first\nsecond"
