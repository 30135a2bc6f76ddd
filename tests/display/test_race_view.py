"""The race on the screen: what is drawn, also while another thread adds to it, and what is claimed in the end."""

import re
import threading
from io import StringIO

import pytest

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.decoding.types import Done, Prefill, Step, Token
from specdec_cli.display import race_view
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.race import RaceResult
from specdec_cli.pairs import profiles

TITLE = "A model of 9 M weights rewrites library.py with another class; repeated text is the draft; one core."
ALONE = (100.0, 102.0, 98.0, 101.0)


class Screen(StringIO):
    def isatty(self):
        return True


def console(width, height=24, file=Screen, **options):
    return SafeConsole(file=file(), width=width, height=height, force_terminal=True, _environ={}, **options)


def answer(lines):
    """The events of an answer, a line a step."""
    yield Prefill("target", 5, 0.01, 0.01)
    for index, line in enumerate(lines):
        token = Token(index, f"{line}\n", "accepted" if index % 3 else "bonus")
        yield Step(index, (token,), (), 0, (), "ngram", 0.0, 0.01, 0.0, 0.01 * index)
    yield Done("length", "", (), 0.01 * len(lines))


@pytest.mark.parametrize("width", [40, 80])
def test_the_screen_stays_what_it_was(width, snapshot, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = console(width, color_system=None)
    view = race_view.RaceView(shown, TITLE)
    for drafts in (False, True):
        for event in answer([f"line {i} of an answer, with {'drafts' if drafts else 'none'}" for i in range(30)]):
            view.show(drafts, event)
    shown.print(view._render())
    text = "\n".join(line.rstrip() for line in shown.file.getvalue().split("\n"))
    assert all(len(line) <= width for line in text.split("\n"))
    snapshot(f"race_{width}.txt", text)


def test_it_is_drawn_while_text_is_added():
    """Rich draws from a thread of its own."""
    shown = console(80)
    view = race_view.RaceView(shown, TITLE)
    failed, drawn, ended = [], [], threading.Event()

    def draw():
        try:
            while not ended.is_set():
                drawn.append(shown.print(view._render()))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    turn = 0
    while len(drawn) < 50 and not failed:
        turn += 1
        for event in answer(["def f(x):", "", "    return x", "\t" * turn, "\n\n"] * 12):
            view.show(bool(turn % 2), event)
    ended.set()
    for thread in threads:
        thread.join()
    assert not failed and turn > 2


def test_a_pipe_gets_colour_if_that_is_forced_and_no_animation():
    shown = console(80, file=StringIO)
    with race_view.RaceView(shown, TITLE) as view:
        for event in answer(["text"] * 3):
            view.show(False, event)
    text = shown.file.getvalue()
    assert not re.search(r"\x1b\[[\d;?]*[^\dm;?]", text)
    assert " ".join(text.split()).startswith(f"{TITLE} round 1, the target alone: ")


def test_what_to_try_next_names_the_size_of_the_profile():
    shown = SafeConsole(file=StringIO(), width=80, _environ={})
    shown.print(race_view.next_steps())
    pair = profiles.load("qwen2.5-coder-1.5b")
    lines = [line.rstrip() for line in shown.file.getvalue().splitlines()]
    assert f"{pair.download_gb} GB" in lines[1] and all("specdec " in line for line in lines[1:])


def result(alone, drafted, ratio):
    shown = SafeConsole(file=StringIO(), width=80, _environ={})
    shown.print(race_view.result(RaceResult(alone, drafted, geometric_interval(ratio), 3.0, None)))
    return shown.file.getvalue()


def test_a_slower_race_says_so():
    ratio = (0.80, 0.81, 0.79, 0.80)
    drafted = tuple(speed * each for speed, each in zip(ALONE, ratio, strict=True))
    assert result(ALONE, drafted, ratio).startswith("slower than the target alone: 0.80x (0.")


@pytest.mark.parametrize(
    ("alone", "ratio", "says"),
    [
        (ALONE, (1.0, 1.01, 0.99, 1.0), "too small to gain"),
        (ALONE, (3.0, 0.4, 1.0, 1.2), "Other programs use this machine"),
        (ALONE, (), "Nothing was drafted"),
        ((), (), "too busy"),
    ],
)
def test_a_race_that_nobody_won_claims_nothing(alone, ratio, says):
    drafted = tuple(speed * each for speed, each in zip(alone, ratio or [1.0] * len(alone), strict=True))
    text = result(alone, drafted, ratio)
    assert says in " ".join(text.split()) and "x (" not in text
    assert ("tokens/s" in text) == ("█" in text) == (says == "too small to gain"), "speeds only if they can be compared"
