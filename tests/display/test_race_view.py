"""The race on the screen: what is drawn, also while another thread adds to it, and what is claimed in the end."""

import itertools
import re
import threading
from io import StringIO
from types import SimpleNamespace

import pytest
from claims import assert_in_proportion, cells, excludes_one, ratios_in
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.decoding.types import Done, Prefill, Step, Token
from specdec_cli.display import race_view
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.race import Race, RaceResult
from specdec_cli.pairs import profiles

TITLE = "A model of 9 M weights rewrites library.py with another class; repeated text is the draft; one core."
ALONE = (100.0, 102.0, 98.0, 101.0)


class Screen(StringIO):
    def isatty(self):
        return True


def console(width, height=24, file=Screen, **options):
    return SafeConsole(file=file(), width=width, height=height, force_terminal=True, _environ={}, **options)


def printed(part):
    shown = SafeConsole(file=StringIO(), width=80, _environ={})
    shown.print(part)
    return shown.file.getvalue()


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
    shown, ended = console(80), threading.Event()
    view = race_view.RaceView(shown, TITLE)

    def add():
        for turn in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            for event in answer(["def f(x):", "", "    return x", "\t" * (turn % 9), "\n\n"] * 12):
                view.show(bool(turn % 2), event)

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(25):
            shown.print(view._render())
    finally:
        ended.set()
        adding.join()
    assert max(view._rounds.values()) > 1


def test_a_pipe_gets_colour_if_that_is_forced_and_no_animation():
    shown = console(80, file=StringIO)
    with race_view.RaceView(shown, TITLE) as view:
        for event in answer(["text"] * 3):
            view.show(False, event)
    text = shown.file.getvalue()
    assert not re.search(r"\x1b\[[\d;?]*[^\dm;?]", text)
    assert " ".join(text.split()).startswith(f"{TITLE} round 1, the target alone: ")


def test_what_to_try_next_names_the_size_of_the_profile():
    pair = profiles.load("qwen2.5-coder-1.5b")
    lines = [line.rstrip() for line in printed(race_view.next_steps()).splitlines()]
    assert f"{pair.download_gb} GB" in lines[1] and all("specdec " in line for line in lines[1:])


@pytest.mark.parametrize(
    ("alone", "ratio", "says", "comparable"),
    [
        (ALONE, (0.80, 0.81, 0.79, 0.80), "slower than the target alone: 0.80x (0.", True),
        (ALONE, (1.0, 1.01, 0.99, 1.0), "too small to gain", True),
        (ALONE, (3.0, 0.4, 1.0, 1.2), "Other programs use this machine", False),
        (ALONE, (), "Nothing was drafted", False),
        ((), (), "too busy", False),
    ],
)
def test_a_race_that_drafts_did_not_win(alone, ratio, says, comparable):
    """Speeds are shown only if they can be compared."""
    drafted = tuple(speed * each for speed, each in zip(alone, ratio or [1.0] * len(alone), strict=True))
    text = printed(race_view.result(RaceResult(alone, drafted, geometric_interval(ratio), 3.0, None)))
    assert says in " ".join(text.split()) and ("x (" in text) == ("x (" in says)
    assert ("tokens/s" in text) == ("█" in text) == comparable


def race_of(speeds, drafted):
    """A race that ended, from the speeds of each round alone and with drafts."""
    race = object.__new__(Race)
    race._session = None
    race.alone = [SimpleNamespace(tokens_per_s=alone, tokens=(1,), drafted=0) for alone, _ in speeds]
    race.drafted = [
        SimpleNamespace(tokens_per_s=mine, tokens=(1,), drafted=drafted, tokens_per_step=2.0) for _, mine in speeds
    ]
    return race


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(20, 60), st.floats(10, 100)), max_size=9), st.floats(0, 1), st.integers(0, 9))
def test_a_race_shows_a_ratio_only_for_drafts_and_with_an_interval_that_excludes_1(speeds, likeness, drafted):
    speeds = [(alone, alone * (mine / alone) ** (1 - likeness)) for alone, mine in speeds]
    text = printed(race_view.result(race_of(speeds, drafted).result()))
    interval = geometric_interval([mine / alone for alone, mine in speeds]) if drafted else None
    assert ratios_in(text) == ([f"{interval.mean:.2f}x"] if excludes_one(interval) else [])
    bars = re.findall(r"(\d+) tokens/s +([█▏▎▍▌▋▊▉]+)", text)
    assert len(bars) in (0, 2)
    assert_in_proportion([cells(bar) for _, bar in bars], [float(speed) for speed, _ in bars], 0.04)
