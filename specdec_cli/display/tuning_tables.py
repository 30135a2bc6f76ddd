"""What `tune` found, on the screen. Everything is read from the result object that `--json` prints."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.display.theme import safe

_BAR = 30


def tables(result: dict[str, Any]) -> list[RenderableType]:
    """The machine, the cost curve, the predictions, the verdict."""
    parts: list[RenderableType] = [Text(line, style="dim") for line in _preamble(result)]
    parts += [Text(f"note: {safe(note)}", style="yellow") for note in result.get("notes", [])]
    parts += [Text(""), _curve(result["costs"]), Text(""), _predictions(result["predictions"]), Text("")]
    parts += [Text(safe(line), style="" if i else "bold") for i, line in enumerate(result["verdict"])]
    if "kept" in result:
        parts.append(Text(f"\nKept for run and compare: {safe(result['kept'])}", style="dim"))
    return parts


def _preamble(result: dict[str, Any]) -> list[str]:
    sampling = "greedy" if result["greedy"] else "sampled"
    lines = [
        f"{safe(result['target'])} + {safe(result['draft'])}, {sampling}, {result['recorded_tokens']:,} places recorded"
    ]
    if hardware := result.get("hardware"):
        lines.append(f"on {safe(hardware['name'])}: {safe(hardware['description'])}")
        if hardware["basis"] != "measured":
            lines.append(
                "its costs are derived from published figures, not measured by specdec; --json tells the sources"
            )
        return lines
    lines.append(f"on {safe(result['machine'])}")
    for role in ("target", "draft"):
        tried = result["threads_tried"].get(role, {})
        laps = ", ".join(f"{threads}: {seconds * 1000:.3g} ms" for threads, seconds in tried.items())
        chosen = result["threads" if role == "target" else "threads_draft"]
        lines.append(
            f"{role}: {chosen} thread{'s' if chosen > 1 else ''}"
            + (f" (a token with {laps})" if len(tried) > 1 else "")
        )
    if placement := result["placement_tried"]:
        laps = ", ".join(f"{where} {seconds * 1000:.3g} ms" for where, seconds in placement.items())
        lines.append(f"draft on the {min(placement, key=lambda where: placement[where])} (a token: {laps})")
    if filled := result["filled"]:
        costs = result["costs"]
        grown = [
            f"{role} {filled[role] / costs[key]['1']:.2f}" for role, key in (("target", "verify"), ("draft", "draft"))
        ]
        lines.append(
            f"with {filled['tokens']:,.0f} tokens of context, a token costs {' and '.join(grown)} times as much"
        )
    return lines


def _curve(costs: dict[str, Any]) -> Table:
    """Passes of the target by length, against a single token."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name, justify in (("tokens in a pass", "right"), ("target", "right"), ("", "left"), ("of one", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    points = {int(n): seconds for n, seconds in costs["verify"].items()}
    most = max(points.values())
    for n, seconds in sorted(points.items()):
        bar = "\u2588" * max(1, round(seconds / most * _BAR))
        table.add_row(str(n), f"{seconds * 1000:.3g} ms", bar, f"{seconds / points[1]:.2f}\u00d7")
    table.add_row(
        "draft: 1", f"{costs['draft']['1'] * 1000:.3g} ms", "", f"{costs['draft']['1'] / points[1]:.2f}\u00d7"
    )
    return table


def _predictions(predictions: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    columns = ("category", "alone tok/s", "first token stands", "best fixed -k", "-k auto", "tok/step")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    for found in predictions:
        fixed = f"{found['fixed']:.2f}\u00d7 (k={found['best_k']})" if found["best_k"] else "none pays"
        table.add_row(
            Text(safe(found["category"])),  # a category is no markup
            f"{found['alone_tokens_per_s']:,.1f}",
            f"{found['acceptance']:.0%}",
            fixed,
            f"{found['auto']:.2f}\u00d7",
            f"{found['tokens_per_step']:.2f}",
        )
    return table
