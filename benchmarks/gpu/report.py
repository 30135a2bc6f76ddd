"""The measurements of a day on a GPU as Markdown tables, and whether they meet their bars.

    python3 benchmarks/gpu/report.py FOLDER

FOLDER has any of curves.json, outside.json, compare-SUITE-TEMPERATURE.json and peers.json; README.md says what writes
them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend([str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "bench")])

import curves
import overhead
import page
import results
from common import markdown

GREEDY_OUTSIDE, SAMPLED_OUTSIDE = 0.05, 0.10
"""The largest share of the time that may be spent outside llama.cpp."""
AGAINST_GREEDY, AGAINST_SAMPLED = 1.0, 1.25
"""The lowest speed of `-k auto` relative to llama.cpp's fastest setting, in every cell."""
GAIN, GAIN_SUITE = 2.5, "code"
"""Its lowest speedup over the target alone on a suite of code, greedy."""
NEVER_UNDER = 0.98
"""Its lowest speed relative to the target alone, anywhere."""

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that must be at most, or at least, a limit."""

    what: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def outside_bars(data: Data) -> list[Bar]:
    return [
        Bar(
            f"outside llama.cpp: {one['setting']}",
            one["share"],
            SAMPLED_OUTSIDE if "temp" in one["setting"] else GREEDY_OUTSIDE,
            at_most=True,
        )
        for one in data["steps"]
    ]


def peers_bars(found: results.Results) -> list[Bar]:
    """In each cell, against the fastest setting of llama.cpp's tools."""
    bars = []
    for cell in found.cells.values():
        if (best := page.best_peer(cell)) and best[1].default:
            what = f"auto / {best[0]}: {cell.suite}, temperature {cell.temperature:g}"
            bars.append(Bar(what, best[1].default.mean, AGAINST_SAMPLED if cell.temperature else AGAINST_GREEDY))
    return bars


def compare_bars(data: Data) -> list[Bar]:
    where = f"{data['suite']}, temperature {data['temp']:g}"
    of_auto = (one for one in data["summaries"] if one["variant"].endswith("k=auto") and one["speedup"])
    found = {one["category"]: one["speedup"]["mean"] for one in of_auto}
    bars = [
        Bar(f"auto / target alone: {where}, {name}", value, NEVER_UNDER)
        for name, value in found.items()
        if name != "all" or len(found) == 1
    ]
    if data["suite"] == GAIN_SUITE and data["temp"] == 0 and "all" in found:
        bars.append(Bar(f"auto / target alone: {where}, all", found["all"], GAIN))
    return bars


def bars_table(bars: Sequence[Bar]) -> str:
    rows = []
    for bar in bars:
        limit = f"{'at most' if bar.at_most else 'at least'} {bar.limit:g}"
        rows.append([bar.what, limit, f"{bar.value:.3f}", "met" if bar.met else "**missed**"])
    met = f"{sum(bar.met for bar in bars)} of {len(bars)} met."
    return f"{markdown(['bar', 'limit', 'measured', ''], rows)}\n\n{met}"


def compare_table(data: Data) -> str:
    """The speedup with its interval and the tokens per second, by variant and category."""
    summaries = data["summaries"]
    categories = list(dict.fromkeys(one["category"] for one in summaries))
    cut = ", cut short" if data["partial"] else ""
    rows = []
    for variant in dict.fromkeys(one["variant"] for one in summaries):
        by_category = {one["category"]: one for one in summaries if one["variant"] == variant}
        rows.append([variant, *(_cell(by_category[name]) if name in by_category else "" for name in categories)])
    lines = [f"**{data['suite']}, temperature {data['temp']:g}**{cut}\n", markdown(["variant", *categories], rows)]
    for variant, counts in data["exactness"].items():
        different = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n and kind != "identical")
        if different:
            lines.append(f"\n{variant}: {counts['identical']} answers identical, {different}.")
    return "\n".join(lines)


def _cell(one: Data) -> str:
    speed, found = f"{one['tokens_per_s'] or 0:,.0f}/s", one["speedup"]
    if not found:
        return speed
    interval = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"  # too few prompts
    return f"{found['mean']:.2f}x{interval}, {speed}"


def read(path: Path) -> dict[str, Any]:
    """A file's figures; for a comparison also its suite and temperature, from the file's name."""
    found: dict[str, Any] = json.loads(path.read_text())
    if path.name.startswith("compare-"):
        suite, _, temperature = path.stem.removeprefix("compare-").rpartition("-")
        found |= {"suite": suite, "temp": float(temperature)}
    return found


def everything(folder: Path) -> str:
    """The report on all files in a folder. Missing files and their bars are left out."""
    parts: list[str] = []
    bars: list[Bar] = []

    def add(title: str, paths: Iterable[Path], table: Callable[[Data], str], its_bars: Any = lambda _: ()) -> None:
        for data in (read(path) for path in sorted(paths) if path.is_file() and path.stat().st_size):
            parts.append(f"### {title}\n\n{table(data)}\n")
            bars.extend(its_bars(data))

    def hardware(data: Data) -> str:
        outside = folder / "outside.json"
        steps = read(outside)["steps"] if outside.is_file() else ()
        alone = (one["total"][0] / 1000 for one in steps if one["setting"] == "target alone, greedy")
        return f"```yaml\n{curves.hardware_yaml(data, next(alone, None))}```"

    add("What passes cost, ms", [folder / "curves.json"], curves.table)
    add("Outside llama.cpp, us per step", [folder / "outside.json"], overhead.table, outside_bars)
    add("Against the target alone", folder.glob("compare-*.json"), compare_table, compare_bars)
    if (peers := folder / "peers.json").is_file():
        found = results.load(peers)
        tables = [*page.peers(found), *page.methods(found)]
        parts.append("### Against llama.cpp\n\n{}\n".format("\n\n".join(tables)))
        bars.extend(peers_bars(found))
    add("For profiles/hardware", [folder / "curves.json"], hardware)
    return "\n".join([*parts, f"### Bars\n\n{bars_table(bars)}"]) if parts else "there is nothing in this folder yet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(everything(parser.parse_args().folder))


if __name__ == "__main__":
    main()
