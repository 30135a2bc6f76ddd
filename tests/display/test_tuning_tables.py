"""What `tune` found, on screens of several widths; hostile names included."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from specdec_cli.display.tuning_tables import tables
from specdec_cli.evaluation.comparison_result import CostPoints
from specdec_cli.evaluation.prediction import Prediction
from specdec_cli.evaluation.tuning_result import HardwareInfo, HardwarePrediction, MeasuredTuning


def prediction(category, auto, best_k):
    fixed = auto - 0.05 if best_k else 1.0
    return Prediction(category, 640, 0.658, 1.4, alone_tokens_per_s=1234.5, auto=auto, best_k=best_k, fixed=fixed)


SHARED = {
    "target": "target.gguf",
    "draft": "draft.gguf",
    "costs": CostPoints({1: 0.0005, 16: 0.004, 2: 0.00075, 4: 0.001}, {1: 0.0002, 512: 0.1}, 0.0),
    "predictions": (prediction("code", 1.31, 3), prediction("prose", 0.99, 0), prediction("all", 1.15, 2)),
    "verdict": ("This pair pays on this machine for code (1.31x).", "A draft token costs 40% of a target token."),
}
MEASURED = MeasuredTuning(
    **SHARED,
    greedy=True,
    recorded_tokens=1280,
    machine="AMD EPYC; 8 cores",
    threads=4,
    threads_draft=1,
    gpu_layers=-1,
    gpu_layers_draft=0,
    threads_tried={"target": {1: 0.0015, 4: 0.0005}, "draft": {1: 0.0002}},
    placement_tried={"GPU": 0.0009, "CPU": 0.0002},
    filled={"tokens": 1016, "target": 0.001, "draft": 0.0003},
    memory=(),
    notes=("the draft is larger than the target",),
    kept="/path/to/config/specdec/tuned/target+draft-0123.json",
)
H200 = HardwareInfo("h200", "H200, CUDA; 8B and 1B", "derived", "a blog")
WHAT_IF = HardwarePrediction(**SHARED, greedy=False, recorded_tokens=7739, hardware=H200)


def shown(result, width=100):
    console = Console(file=StringIO(), width=width, highlight=False, _environ={})
    for part in tables(result):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize(("result", "name"), [(MEASURED, "tuning.txt"), (WHAT_IF, "tuning_what_if.txt")])
def test_what_was_measured_and_what_was_predicted(snapshot, result, name):
    snapshot(name, shown(result))


def test_costs_that_were_measured_are_not_called_derived():
    text = shown(replace(WHAT_IF, hardware=replace(H200, basis="measured")))
    assert "derived" in shown(WHAT_IF) and "derived" not in text
    assert "source" not in text and "Kept" not in shown(WHAT_IF)


def test_without_choices_and_without_a_filled_cache():
    assert "1.00\u00d7" in shown(replace(MEASURED, costs=CostPoints({1: 1e-9}, {1: 5000.0}, 0.0)))
    text = shown(replace(MEASURED, threads_tried={}, placement_tried={}, filled={}, notes=()))
    assert "target: 4 threads\n" in text and "GPU" not in text and "context" not in text and "note:" not in text


@pytest.mark.parametrize("width", [1, 8, 20, 40, 60, 300])
@pytest.mark.parametrize("result", [MEASURED, WHAT_IF], ids=["measured", "what if"])
def test_any_width(result, width):
    text = shown(result, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 8:
        assert result.verdict[0].replace(" ", "") in "".join(text.split())
    if width >= 60:
        assert all(figure in text for figure in ("1,234.5", "66%", "1.31\u00d7", "none pays", "1.40"))


@pytest.mark.parametrize(
    "text", ["a\x1b[31m\x07\x9b2J\u202eb.gguf", "[/x]", "[bold]x", "list[int]", ":smile:"], ids=ascii
)
def test_names_are_neither_escapes_nor_markup(text):
    """In all places at once: each is shown as often as it was given."""
    named = {"target": text, "draft": text, "verdict": (text, text), "predictions": (prediction(text, 1.3, 3),)}
    measured = replace(MEASURED, **named, machine=text, kept=text, notes=(text,))
    predicted = replace(WHAT_IF, **named, hardware=replace(H200, name=text, description=text))
    for result, places in ((measured, 8), (predicted, 7)):
        found = shown(result, 300)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(found)
        assert found.count("b.gguf" if "gguf" in text else text) == places
