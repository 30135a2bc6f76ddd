"""A comparison on the screen and as Markdown. Everything is read from the result object that `--json` prints."""

from __future__ import annotations

import math
import re
import statistics
from time import monotonic
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdec_cli.display.theme import safe
from specdec_cli.evaluation.trials import Trial, geometric_interval, paired_ratios

_INTERVAL_S = 0.25
_PARTIAL = "PARTIAL: stopped before all runs were done"
_FINDINGS = {
    "faster": ("faster", "green"),
    "slower": ("slower", "red"),
    "no measurable difference": ("=", "dim"),
    "too few prompts": ("", ""),
}
"""What a table has room for; "=" is spelt out in the sentences below it."""

_DETAILS = ("arm", "accepted by position", "time", "answers as the target alone's")
COLUMNS = ("arm", "tok/s", "TTFT", "TPOT", "accept", "tok/step", "speedup", "95 %", "")


class Progress:
    """While it runs: how far it is, the time left, and each arm's ratio so far. Silent where there is no terminal."""

    def __init__(self, out: TextIO) -> None:
        console = Console(file=out, highlight=False)
        shown = out.isatty() and not console.is_dumb_terminal  # FORCE_COLOR makes no terminal of a file
        self._live = Live(console=console, auto_refresh=False, transient=True) if shown else None
        self._started = monotonic()
        self._next = 0.0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, trials: list[Trial], total: int, baselines: dict[str, str]) -> None:
        """Show the state after one more trial, a few times a second at most."""
        now = monotonic()
        if self._live is None or now < self._next:
            return
        self._next = now + _INTERVAL_S
        left = (now - self._started) / len(trials) * (total - len(trials))
        lines = [Text(f"{len(trials)} of {total} runs, about {left:,.0f} s left")]
        for arm, baseline in baselines.items():
            speeds = [speed for trial in trials if trial.arm == arm and (speed := trial.tokens_per_s)]
            if not speeds:
                continue
            line = f"  {arm}: {statistics.median(speeds):,.1f} tokens/s"
            ratios = paired_ratios(trials, arm, baseline)
            if arm != baseline and ratios:
                line += f", {math.exp(statistics.fmean(map(math.log, ratios.values()))):.2f}x so far"
            lines.append(Text(line))
        self._live.update(Group(*lines), refresh=True)


def tables(result: dict[str, Any]) -> list[RenderableType]:
    """The result as Rich renderables: a table by category, positions and time, exactness, the verdicts."""
    parts: list[RenderableType] = [Text(_PARTIAL, style="bold yellow")] if result["partial"] else []
    parts += [Text(line, style="yellow" if line.startswith("note") else "dim") for line in preamble(result)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(COLUMNS):
        table.add_column(
            name, justify="right" if 0 < i < 8 else "left", no_wrap=i > 0, min_width=0 if i else 12, overflow="fold"
        )
    for category in categories(result):
        if len(categories(result)) > 1:
            table.add_row(Text(category, style="bold"))
        for summary in of_category(result, category):
            arm, *cells, finding = summary_cells(summary)
            word, style = _FINDINGS.get(finding, ("", ""))
            table.add_row(_breakable(arm), *cells, Text(word, style=style))
    parts += [table, Text()]
    details = Table(box=None, padding=(0, 1), header_style="bold")
    for name in _DETAILS:
        details.add_column(name, overflow="fold", min_width=20 if name == "arm" else 0)
    for arm, *cells in details_of(result):
        details.add_row(_breakable(arm), *cells)
    if details.row_count:
        parts += [details, Text()]
    for finding, *sentences in result["verdicts"].values():
        parts += [Text(finding, style="bold"), *(Text(f"  - {sentence}") for sentence in sentences)]
    return parts


def _breakable(arm: str) -> str:
    """An arm's name with places at which a narrow column can break it."""
    return re.sub(r",(?=\S)", ", ", arm)


def markdown(result: dict[str, Any]) -> str:
    """The result as Markdown, to be pasted into an issue."""
    lines = [f"**{_PARTIAL}**  "] if result["partial"] else []
    lines += [f"{line}  " for line in preamble(result)]
    for category in categories(result):
        lines += ["", f"**{category}**", "", _row(list(COLUMNS)), _row([":---", *["---:"] * 7, ":---"])]
        lines += [_row(summary_cells(summary)) for summary in of_category(result, category)]
    if detailed := details_of(result):
        lines += [
            "",
            _row(list(_DETAILS)),
            _row([":---"] * 4),
        ]
        lines += [_row(cells) for cells in detailed]
    for finding, *sentences in result["verdicts"].values():
        lines += ["", finding, "", *(f"- {sentence}" for sentence in sentences)]
    return "\n".join(lines)


def against(result: dict[str, Any], before: dict[str, Any]) -> RenderableType:
    """How many times as fast each arm is now as it was then, over the prompts and settings that both results have."""
    if result["models"] != before["models"]:
        return Text("The kept result is of other models: nothing to compare.", style="bold")
    differing = [
        f"{name}: {then} then, {now} now"
        for name, then, now in (
            ("threads", before["machine"].get("threads"), result["machine"]["threads"]),
            ("platform", before["machine"].get("platform"), result["machine"]["platform"]),
            ("versions", before["versions"], result["versions"]),
        )
        if then != now
    ]
    table = Table(title="against the kept result (taken at another time: not paired)", box=None, title_justify="left")
    for name in ("arm", "then", "now", "now / then", "95 %", ""):
        table.add_column(name)
    old = {arm["name"]: arm["settings"] for arm in before["arms"]}
    for arm in result["arms"]:
        name = arm["name"]
        if not _same_decoding(arm["settings"], old.get(name)):
            continue
        now, then = _speeds(result, name), _speeds(before, name)
        common = sorted(now.keys() & then.keys())
        interval = geometric_interval([now[prompt] / then[prompt] for prompt in common])
        if interval:
            medians = [statistics.median(speeds[prompt] for prompt in common) for speeds in (then, now)]
            bounds = "" if interval.low is None else f"{interval.low:.2f}-{interval.high:.2f}"
            cells = [f"{speed:,.1f} tok/s" for speed in medians]
            table.add_row(name, *cells, f"{interval.mean:.2f}x", bounds, interval.difference)
    if not table.row_count:
        return Text("The kept result has no arm and prompt in common with this one.", style="bold")
    return Group(table, *(Text(f"differs: {line}", style="yellow") for line in differing))


_PLACE = ("target", "draft", "threads", "ctx", "gpu_layers", "gpu_layers_draft", "seed")


def _same_decoding(mine: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether two arms' settings decode alike; where they ran is said apart."""
    if other is None:
        return False
    known = {"bitwise": False, **other}  # results kept by older versions do not name it
    return all(known.get(name) == value for name, value in mine.items() if name not in _PLACE)


def _speeds(result: dict[str, Any], arm: str) -> dict[str, float]:
    """Each prompt's median speed, by the prompt's text."""
    found: dict[str, list[float]] = {}
    for trial in result["trials"]:
        if trial["arm"] == arm and trial["tokens_per_s"] and trial["prompt"] in result["prompts"]:
            found.setdefault(result["prompts"][trial["prompt"]], []).append(trial["tokens_per_s"])
    return {prompt: statistics.median(speeds) for prompt, speeds in found.items()}


def preamble(result: dict[str, Any]) -> list[str]:
    models = " + ".join(
        f"{model['file']} ({model['parameters'] / 1e6:,.1f} M, {model['bytes'] / 1e6:,.1f} MB)"
        for model in result["models"].values()
    )
    devices = ", ".join(f"{device['description']} ({device['kind']})" for device in result["machine"]["devices"])
    prompts = len({trial["prompt"] for trial in result["trials"]})
    corpus = f", a corpus of {result['corpus']:,} tokens" if result.get("corpus") else ""
    lines = [
        models + corpus,
        f"{devices}, {_count(result['machine']['threads'], 'thread')}, context {result['context']:,}, "
        f"specdec {result['specdec']}, llama-cpp-python {result['versions']['llama-cpp-python']}",
        f"{_count(prompts, 'prompt')}, {_count(result['rounds'], 'round')} each, arms in alternating order; "
        "TTFT and TPOT in ms",
    ]
    for arm, spread in result["noise"].items():
        if spread is not None:
            lines.append(f"noise: {arm} differs from itself by {spread:.1%} between rounds (median over prompts)")
    if result["skipped"]:
        lines.append(f"skipped, too long for the context: {_count(len(result['skipped']), 'prompt')}")
    return lines + [f"note: {safe(note)}" for note in result["notes"]]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def categories(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(summary["category"] for summary in result["summaries"]))


def of_category(result: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [summary for summary in result["summaries"] if summary["category"] == category]


def summary_cells(summary: dict[str, Any]) -> list[str]:
    speedup = summary["speedup"] or {"mean": None, "low": None, "high": None, "difference": ""}
    bounded = speedup["low"] is not None and speedup["high"] is not None
    lossy = summary.get("distance_per_token") is not None  # older results have no such figure
    return [
        summary["arm"] + (" (lossy)" if lossy else ""),
        _number(summary["tokens_per_s"], ",.1f"),
        _number(summary["ttft_s"], ",.1f" if (summary["ttft_s"] or 0) < 1 else ",.0f", 1000),
        _number(summary["tpot_ms"], ".2f" if (summary["tpot_ms"] or 0) < 100 else ",.0f"),
        _number(summary["acceptance_rate"], ".0%"),
        _number(summary["tokens_per_step"], ".2f"),
        _number(speedup["mean"], ".2f") + ("x" if speedup["mean"] else ""),
        f"{speedup['low']:.2f}-{speedup['high']:.2f}" if bounded else "",
        speedup["difference"],
    ]


def details_of(result: dict[str, Any]) -> list[list[str]]:
    """Cells of each arm that drafted, or whose answers were compared with the target's own."""
    arms = of_category(result, "all")
    return [_details(result, arm) for arm in arms if arm["per_position"] or arm["arm"] in result["exactness"]]


def _details(result: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    positions = " ".join(f"{rate:.0%}" for rate in summary["per_position"][:8])
    more = " \u2026" if len(summary["per_position"]) > 8 else ""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in summary["shares"].items() if share >= 0.005)
    exact = result["exactness"].get(summary["arm"])
    same = "not comparable (sampled)"
    if (distance := summary.get("distance_per_token")) is not None:
        same = f"LOSSY: each token's distribution is off by {distance:.3f} (total variation)"
    if exact is not None:
        shown = {"identical": "identical", "rounding": "differ by rounding (proved)", "wrong": "WRONG"}
        shown["not classified"] = "different, not classified"
        parts = [f"{exact[name]} {word}" for name, word in shown.items() if exact.get(name) or name == "identical"]
        same = ", ".join(parts)
    return [summary["arm"], positions + more, shares, same]


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
