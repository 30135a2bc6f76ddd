"""The result of `specdec tune` as tables."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.wording import counted
from specdec_cli.display.parts import bar, duration
from specdec_cli.display.tables import note_lines, plain_table
from specdec_cli.engine.generation_result import conditions
from specdec_cli.measure.simulate import Prediction
from specdec_cli.measure.tune import HardwarePrediction, MeasuredTuning, TuningResult

_BAR = 30
_DERIVED = "its costs are estimates, partly from published figures and partly assumed; --json names the sources"


def tables(result: TuningResult) -> list[RenderableType]:
    sampling = "greedy" if result.greedy else "sampled"
    lines = [f"{result.target} + {result.draft}, {sampling}, {result.recorded_tokens:,} tokens recorded"]
    notes, kept, speeds = tuple[str, ...](), "", ""
    if isinstance(result, HardwarePrediction):
        lines.append(f"on {result.hardware['name']}: {result.hardware['description']}")
        if result.hardware["basis"] != "measured":
            lines.append(_DERIVED)
    if isinstance(result, MeasuredTuning):
        lines += _measurement(result)
        notes = result.notes
        speeds = f"alone: the target without drafts, {conditions(result.threads, result.ctx)}"
        kept = f"\nKept for run and compare: {result.kept}" if result.kept else ""
    return [
        *(Text(line, style="dim") for line in lines),
        *note_lines(notes),
        *(Text(""), _curve(result.costs), Text(""), _predictions(result.predictions)),
        *([Text(speeds, style="dim")] if speeds else []),
        Text(""),
        *(Text(line, style="" if i else "bold") for i, line in enumerate(result.verdict)),
        *([Text(kept, style="dim")] if kept else []),
    ]


def _measurement(result: MeasuredTuning) -> list[str]:
    lines = [f"on {result.machine}"]
    for role, threads in (("target", result.threads), ("draft", result.threads_draft)):
        tried = result.threads_tried.get(role, {})
        laps = ", ".join(f"{duration(seconds)} with {number}" for number, seconds in tried.items())
        choice = f" (a token takes {laps})" if len(tried) > 1 else ""
        lines.append(f"{role}: {counted(threads, 'thread')}{choice}")
    if placement := result.placement_tried:
        laps = ", ".join(f"{duration(seconds)} on the {where}" for where, seconds in placement.items())
        lines.append(f"draft on the {min(placement, key=lambda where: placement[where])} (a token takes {laps})")
    if filled := result.filled:
        curves = (("target", result.costs.verify), ("draft", result.costs.draft))
        grown = " and ".join(f"{filled[role] / curve(1):.2f} ({role})" for role, curve in curves)
        lines.append(f"with {filled['tokens']:,.0f} tokens in the cache, a token takes {grown} times as long")
    return lines


def _curve(costs: Costs) -> Table:
    table = plain_table(("tokens in a pass", "target", "", "of one"), left=("",))
    points = costs.verify.points
    one, most = points[1], max(points.values())
    for n, seconds in points.items():
        table.add_row(str(n), duration(seconds), bar(seconds / most, _BAR), f"{seconds / one:.2f}x")
    table.add_row("draft: 1", duration(costs.draft(1)), "", f"{costs.draft(1) / one:.2f}x")
    return table


def _predictions(predictions: Sequence[Prediction]) -> Table:
    columns = ("category", "alone tok/s", "first accepted", "best fixed -k", "-k auto", "tok/step")
    table = plain_table(columns, left=("category",))
    for each in predictions:
        table.add_row(
            each.category,
            f"{each.alone_tokens_per_s:,.1f}",
            f"{each.acceptance:.0%}",
            f"{each.fixed:.2f}x (k={each.best_k})" if each.best_k else "none pays",
            f"{each.auto:.2f}x",
            f"{each.tokens_per_step:.2f}",
        )
    return table
