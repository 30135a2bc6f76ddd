"""The race on the screen: what is drawn, also while another thread adds to it, and what is claimed in the end."""

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


def console(width, height=24, **options):
    return SafeConsole(file=StringIO(), width=width, height=height, force_terminal=True, _environ={}, **options)


def answer(lines):
    """The events of an answer, a line a step."""
    yield Prefill("target", 5, 0.01, 0.01)
    for index, line in enumerate(lines):
        token = Token(index, f"{line}\n", "accepted" if index % 3 else "bonus")
        yield Step(index, (token,), (), 0, (), "ngram", 0.0, 0.01, 0.0, 0.01 * index)
    yield Done("length", "", (), 0.01 * len(lines))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_stays_what_it_was(width, snapshot):
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
    while len(drawn) < 150 and not failed:
        turn += 1
        for event in answer(["def f(x):", "", "    return x", "\t" * turn, "\n\n"] * 12):
            view.show(bool(turn % 2), event)
    ended.set()
    for thread in threads:
        thread.join()
    assert not failed and turn > 20


def said(alone, ratio, width=80):
    drafted = tuple(speed * each for speed, each in zip(alone, ratio, strict=True))
    found = RaceResult(alone, drafted, geometric_interval(ratio), 3.0, None)
    shown = SafeConsole(file=StringIO(), width=width, _environ={})
    shown.print(race_view.result(found))
    return shown.file.getvalue()


RATIOS = [(2.0, 2.1, 1.9, 2.0), (0.5, 0.6, 0.5, 0.5), (1.0, 1.01, 0.99, 1.0), (3.0, 0.4, 1.0, 1.2)]


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_ratio_is_claimed_only_where_its_interval_excludes_one(ratio):
    text, interval = said(ALONE, ratio), geometric_interval(ratio)
    claimed = f"{interval.mean:.2f}x" in text
    assert claimed == (interval.low > 1 or interval.high < 1) == (ratio[0] in (2.0, 0.5))
    if ratio[0] == 3.0:  # nothing can be told
        assert "Other programs use this machine" in text and "tokens/s" not in text and "█" not in text
        return
    assert claimed or ("x (" not in text and "too small to gain" in text)
    rows = [line.split() for line in text.splitlines() if "tokens/s " in line]
    speeds, bars = [float(row[-3].replace(",", "")) for row in rows], [len(row[-1]) for row in rows]
    assert len(rows) == 2 and max(bars) == 24
    assert all(abs(bar - 24 * speed / max(speeds)) < 1.1 for bar, speed in zip(bars, speeds, strict=True))


def test_what_to_try_next_names_the_size_of_the_profile():
    shown = SafeConsole(file=StringIO(), width=80, _environ={})
    shown.print(race_view.next_steps())
    pair = profiles.load("qwen2.5-coder-1.5b")
    lines = [line.rstrip() for line in shown.file.getvalue().splitlines()]
    assert f"{pair.download_gb} GB" in lines[1] and all("specdec " in line for line in lines[1:])


def test_a_race_that_came_to_nothing_claims_nothing():
    assert "too busy" in said((), ())
