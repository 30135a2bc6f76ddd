"""What `tune` found, on screens of several widths; hostile names included."""

from __future__ import annotations

import copy
from io import StringIO

import pytest
from rich.console import Console

from specdec_cli.display.tuning_tables import tables


def prediction(category, auto, best_k, **changes):
    found = {"category": category, "tokens": 640, "acceptance": 0.658, "tokens_per_step": 1.4, "best_k": best_k}
    return {**found, "alone_tokens_per_s": 1234.5, "auto": auto, "fixed": auto - 0.05 if best_k else 1.0, **changes}


MEASURED = {
    "target": "target.gguf",
    "draft": "draft.gguf",
    "greedy": True,
    "recorded_tokens": 1280,
    "costs": {
        "verify": {"1": 0.0005, "16": 0.004, "2": 0.00075, "4": 0.001},
        "draft": {"1": 0.0002, "512": 0.1},
        "other": 0.0,
    },
    "predictions": [prediction("code", 1.31, 3), prediction("prose", 0.99, 0), prediction("all", 1.15, 2)],
    "verdict": ["This pair pays on this machine for code (1.31x).", "A draft token costs 40% of a target token."],
    "machine": "AMD EPYC; 8 cores",
    "threads": 4,
    "threads_draft": 1,
    "threads_tried": {"target": {1: 0.0015, 4: 0.0005}, "draft": {1: 0.0002}},
    "placement_tried": {"GPU": 0.0009, "CPU": 0.0002},
    "filled": {"tokens": 1016, "target": 0.001, "draft": 0.0003},
    "notes": ["the draft is larger than the target"],
    "kept": "/path/to/config/specdec/tuned/target+draft-0123.json",
}
WHAT_IF = {
    **{key: MEASURED[key] for key in ("target", "draft", "costs", "predictions", "verdict")},
    "recorded_tokens": 7739,
    "greedy": False,
    "hardware": {"name": "h200", "description": "H200, CUDA; 8B and 1B", "basis": "derived", "source": "a blog"},
}


def shown(result, width=100):
    console = Console(file=StringIO(), width=width, highlight=False, _environ={})
    for part in tables(result):
        console.print(part)
    return console.file.getvalue()


def test_what_was_measured(snapshot):
    snapshot("tuning.txt", shown(MEASURED))


def test_what_was_predicted(snapshot):
    snapshot("tuning_what_if.txt", shown(WHAT_IF))


def test_costs_that_were_measured_are_not_called_derived():
    result = {**WHAT_IF, "hardware": {**WHAT_IF["hardware"], "basis": "measured"}}
    assert "derived" in shown(WHAT_IF) and "derived" not in shown(result)
    assert "source" not in shown(result) and "Kept" not in shown(WHAT_IF)


def test_the_curve_is_in_the_order_of_its_points():
    rows = [line.split()[0] for line in shown(MEASURED).splitlines() if " ms " in line and "\u2588" in line]
    assert rows == ["1", "2", "4", "16"]


def test_a_curve_of_one_point():
    result = {**MEASURED, "costs": {"verify": {"1": 1e-9}, "draft": {"1": 5000.0}, "other": 0.0}}
    assert "1.00\u00d7" in shown(result)


def test_without_choices_and_without_a_filled_cache():
    text = shown({**MEASURED, "threads_tried": {}, "placement_tried": {}, "filled": {}, "notes": []})
    assert "target: 4 threads\n" in text and "GPU" not in text and "context" not in text and "note:" not in text


@pytest.mark.parametrize("width", [1, 8, 20, 40, 60, 300])
@pytest.mark.parametrize("result", [MEASURED, WHAT_IF], ids=["measured", "what if"])
def test_any_width(result, width):
    text = shown(result, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 8:
        assert result["verdict"][0].replace(" ", "") in "".join(text.split())
    if width >= 60:
        assert all(figure in text for figure in ("1,234.5", "66%", "1.31\u00d7", "none pays", "1.40"))


HOSTILE = "a\x1b[31m\x07\x9b2J\u202eb.gguf"
PLACES = [
    ("target",), ("draft",), ("machine",), ("kept",), ("notes", 0), ("verdict", 0), ("verdict", 1),
    ("predictions", 0, "category"), ("hardware", "name"), ("hardware", "description"),
]  # fmt: skip


def planted(place, text):
    result = copy.deepcopy(WHAT_IF if place[0] == "hardware" else MEASURED)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = text
    return shown(result, 300)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_no_escapes_from_names(place):
    text = planted(place, HOSTILE)
    assert "b.gguf" in text and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", ["[/x]", "[bold]x", "list[int]", ":smile:"])
def test_names_are_no_markup(place, name):
    assert name in planted(place, name)
