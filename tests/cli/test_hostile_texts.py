"""No name and no text from elsewhere reaches a terminal as it is: every command, every place that holds one."""

import json

import pytest
from driver import call
from hostile import FIXED, PLACES, SLOW, assert_shown, trace
from terminal import Terminal

from specdec_cli.cli.output import json_text


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.slow] if place in SLOW else []) for place in PLACES]
)
def test_in_a_pipe(tmp_path, place):
    done = call(*PLACES[place](tmp_path, FIXED))
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    pages = {"a recording": (), "a recording's picture": ("run.svg",), "a recording's page": ("run.html",)}
    assert done.exit_code in ((0,) if place in pages else range(5)) and done.output
    assert_shown(done.stderr if "recording" in place else done.output)  # a pipe gets an answer as it is
    for page in pages.get(place, ()):
        assert_shown((tmp_path / page).read_text("utf-8"))


def test_a_recording_on_a_terminal(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(trace(FIXED))
    with Terminal("replay", path, "-v") as terminal:
        assert terminal.ended() == 0
        assert_shown(terminal.raw.decode(), terminal=True)
        assert "\u241b]52" in terminal.raw.decode()


def test_a_recording_step_by_step(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(trace(FIXED))
    with Terminal("replay", path, "--step") as terminal:
        terminal.read(until="before the prompt")
        terminal.press(b" ")
        terminal.read(until="step 0")
        terminal.press(b" ")
        terminal.read(until="step 1")
        terminal.press(b"q")
        assert terminal.ended() == 0
        assert_shown(terminal.raw.decode(), terminal=True)


def test_json_loses_nothing_and_holds_nothing_that_is_obeyed():
    assert json.loads(json_text(FIXED)) == FIXED and json_text(FIXED).isprintable() and json_text(FIXED).isascii()
