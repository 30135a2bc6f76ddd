"""What measure.py wrote as Markdown tables, each figure that has a bar beside it, met or missed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curves
from peers import head, row
from waits import PARTS

GREEDY_OUTSIDE, SAMPLED_OUTSIDE = 0.05, 0.10
"""The most of the time that may pass outside llama_decode."""
AGAINST_GREEDY, AGAINST_SAMPLED = 1.0, 1.25
"""The least that `-k auto` must be of llama.cpp's best static setting, in every category."""
GAIN, GAIN_SUITE = 2.5, "code"
"""The least that it must be of the target alone on a suite of code, greedy."""
NEVER_UNDER = 0.98
"""The least that it must be of the target alone, anywhere."""
SHOWN = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64)

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that must not be more, or not be less, than a limit."""

    what: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def cells(self) -> tuple[str, str, str, str]:
        sign = "at most" if self.at_most else "at least"
        return self.what, f"{sign} {self.limit:g}", f"{self.value:.3f}", "met" if self.met else "**missed**"


def outside_bars(data: Data) -> list[Bar]:
    return [
        Bar(
            f"outside llama_decode: {one['setting']}",
            one["share"],
            SAMPLED_OUTSIDE if one["sampled"] else GREEDY_OUTSIDE,
            at_most=True,
        )
        for one in data["steps"]
    ]


def peers_bars(data: Data) -> list[Bar]:
    """In each cell against whichever peer was faster."""
    return [
        Bar(
            f"auto / llama.cpp's best ({found['best']}): {name}",
            min(peer["ratio"] for peer in found["against"].values()),
            AGAINST_SAMPLED if found["temp"] else AGAINST_GREEDY,
        )
        for name, found in data["cells"].items()
        if found["against"]
    ]


def speedups(data: Data, arm: str) -> dict[str, float]:
    """By category the mean speedup of an arm of a comparison over the target alone."""
    return {
        one["category"]: one["speedup"]["mean"]
        for one in data["result"]["summaries"]
        if one["arm"] == arm and one["speedup"]
    }


def compare_bars(data: Data) -> list[Bar]:
    where = f"{data['suite']}, temperature {data['temp']:g}"
    found = speedups(data, "k=auto")
    bars = [
        Bar(f"auto / target alone: {where}, {name}", value, NEVER_UNDER)
        for name, value in found.items()
        if name != "all" or len(found) == 1
    ]
    if data["suite"] == GAIN_SUITE and data["temp"] == 0 and "all" in found:
        bars.append(Bar(f"auto / target alone: {where}, all", found["all"], GAIN))
    return bars


def bars_table(bars: Sequence[Bar]) -> str:
    lines = [head("bar", "limit", "measured", ""), *(row(*bar.cells()) for bar in bars)]
    return "\n".join([*lines, f"\n{sum(bar.met for bar in bars)} of {len(bars)} met."])


def curves_table(data: Data) -> str:
    """The shortest lap of a pass over n tokens, in milliseconds."""
    lines = [head("model", "context", "flash attention", *(f"n={n}" for n in SHOWN))]
    for curve in data["curves"]:
        least = curve["least_ms"]
        cells = [f"{least[str(n)]:.2f}" if str(n) in least else "" for n in SHOWN]
        lines.append(row(curve["model"], curve["context"], "on" if curve["flash_attention"] else "off", *cells))
    return "\n".join(lines)


def outside_table(data: Data) -> str:
    lines = [head("setting", "draft", "verify", "sample", "rest", "us a step", "share")]
    for one in data["steps"]:
        parts = [f"{one[part]:.1f}" for part in ("draft", "verify", "sample", "rest")]
        lines.append(row(one["setting"], *parts, f"{one['total'][0]:.1f}", f"{one['share']:.1%}"))
    return "\n".join(lines)


def waits_table(data: Data) -> str:
    """Microseconds a step by part, and the share of each; a column a setting."""
    steps = data["steps"]
    totals = [sum(one["us"].values()) for one in steps]
    lines = [head("us a step", *(one["setting"] for one in steps))]
    for part in PARTS:
        cells = [
            f"{one['us'][part]:,.1f} ({one['us'][part] / total:.1%})" for one, total in zip(steps, totals, strict=True)
        ]
        lines.append(row(part, *cells))
    lines.append(row("together", *(f"{total:,.1f}" for total in totals)))
    rows = data["rows"]
    lines.append(
        f"\nA pass of {rows['tokens']} tokens: {rows['every_row_ms']:.3f} ms with a row of logits for each, "
        f"{rows['last_row_ms']:.3f} ms with that of the last alone.\n"
    )
    lines.append(head("sizes of passes in turn", "model", "ms each"))
    for one in data["planning"]:
        sizes = ", ".join(map(str, one["order"]))
        lines.append(row(sizes, one["model"], ", ".join(f"{ms:.3f}" for ms in one["ms"])))
    return "\n".join(lines)


def compare_table(data: Data) -> str:
    """By arm and category the speedup with its interval, tokens a second, acceptance."""
    summaries = data["result"]["summaries"]
    categories = list(dict.fromkeys(one["category"] for one in summaries))
    cut = ", cut short" if data["result"]["partial"] else ""
    lines = [f"**{data['suite']}, temperature {data['temp']:g}**{cut}\n", head("arm", *categories)]
    for arm in dict.fromkeys(one["arm"] for one in summaries):
        by_category = {one["category"]: one for one in summaries if one["arm"] == arm}
        lines.append(row(arm, *(_cell(by_category[name]) if name in by_category else "" for name in categories)))
    for arm, counts in data["result"]["exactness"].items():
        if different := {kind: n for kind, n in counts.items() if n and kind != "identical"}:
            lines.append(f"\n{arm}: {counts['identical']} answers identical, {_counted(different)}.")
    return "\n".join(lines)


def _cell(one: Data) -> str:
    speed = f"{one['tokens_per_s']:,.0f}/s"
    found = one["speedup"]
    if not found:
        return speed
    interval = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"  # too few prompts
    return f"{found['mean']:.2f}x{interval}, {speed}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in counts.items())


def peers_table(data: Data) -> str:
    """Each cell's match with either peer."""
    lines = [head("cell", "best static", "peer", "prompts", "peer's", "specdec", "alone", "specdec / peer", "/ alone")]
    for name, found in data["cells"].items():
        for peer, its in found["against"].items():
            speeds = (float(its[key]) for key in ("peer", "specdec", "alone"))
            ratios = (f"{its[key]:.2f}" for key in ("ratio", "gain"))
            lines.append(row(name, found["best"], peer, its["prompts"], *speeds, *ratios))
    return "\n".join([*lines, f"\n{len(data['sweep'])} settings swept."])


def everything(folder: Path) -> str:
    """All files of a folder. Files that are not there are left out, and so are their bars."""
    parts: list[str] = []
    bars: list[Bar] = []

    def add(title: str, files: Iterable[Path], table: Any, its_bars: Any = None) -> None:
        for data in (json.loads(path.read_text()) for path in sorted(files) if path.is_file()):
            parts.append(f"### {title}\n\n{table(data)}\n")
            if its_bars:
                bars.extend(its_bars(data))

    add("What passes cost, ms", [folder / "curves.json"], curves_table)
    add("Outside llama_decode, us a step", [folder / "outside.json"], outside_table, outside_bars)
    add("What a step waits for", [folder / "waits.json"], waits_table)
    add("Against the target alone", folder.glob("compare-*.json"), compare_table, compare_bars)
    add("Against llama.cpp", [folder / "peers.json"], peers_table, peers_bars)
    if found := hardware(folder):
        parts.append(f"### For profiles/hardware\n\n```yaml\n{found}```\n")
    return "\n".join([*parts, f"### Bars\n\n{bars_table(bars)}"]) if parts else "there is nothing in this folder yet"


def hardware(folder: Path) -> str:
    """The curve as a file for profiles/, with what a step takes besides passes, where both were measured."""
    if not (folder / "curves.json").is_file():
        return ""
    found = json.loads((folder / "curves.json").read_text())
    names = " with ".join(Path(path).stem for path in found["models"].values())
    outside, other = folder / "outside.json", None
    if outside.is_file():
        steps = json.loads(outside.read_text())["steps"]
        other = next((one["total"][0] / 1000 for one in steps if one["setting"] == "target alone, greedy"), None)
    description = f"{found['machine'].partition(';')[0]}; {names} as draft"
    return curves.hardware_yaml(found["curves"], description, found["machine"], other)
