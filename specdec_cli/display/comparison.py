"""A comparison on the screen and as Markdown. Everything is read from the result object that `--json` prints."""

from __future__ import annotations

import math
import statistics
from time import monotonic
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.comparison import Trial, geometric_interval, paired_ratios

_INTERVAL_S = 0.25
_FINDINGS = {"faster": ("faster", "green"), "slower": ("slower", "red"), "no measurable difference": ("=", "dim")}
"""What a table has room for; "=" is spelt out in the sentences below it."""

COLUMNS = ("arm", "tok/s", "TTFT", "TPOT", "accept", "tok/step", "speedup", "95 %", "")


class Progress:
    """While it runs: how far it is, the time left, and each arm's ratio so far. Silent where there is no terminal."""

    def __init__(self, out: TextIO) -> None:
        console = Console(file=out, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
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
    parts: list[RenderableType] = [Text(line, style="dim") for line in preamble(result)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(COLUMNS):
        table.add_column(
            name, justify="right" if 0 < i < 8 else "left", no_wrap=i > 0, min_width=0 if i else 12, overflow="fold"
        )
    for category in categories(result):
        if len(categories(result)) > 1:
            table.add_row(Text(category, style="bold"))
        for summary in of_category(result, category):
            *cells, finding = summary_cells(summary)
            word, style = _FINDINGS.get(finding, ("", ""))
            table.add_row(*cells, Text(word, style=style))
    parts += [table, Text()]
    details = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("arm", "accepted by position", "time", "same as the target alone"):
        details.add_column(name)
    for summary in of_category(result, "all"):
        if summary["per_position"]:
            details.add_row(*detail_cells(result, summary))
    if details.row_count:
        parts += [details, Text()]
    parts += [Text(" ".join(sentences)) for sentences in result["verdicts"].values()]
    return parts


def markdown(result: dict[str, Any]) -> str:
    """The result as Markdown, to be pasted into an issue."""
    lines = [f"{line}  " for line in preamble(result)]
    for category in categories(result):
        lines += ["", f"**{category}**", "", _row(list(COLUMNS)), _row([":---", *["---:"] * 7, ":---"])]
        lines += [_row(summary_cells(summary)) for summary in of_category(result, category)]
    detailed = [summary for summary in of_category(result, "all") if summary["per_position"]]
    if detailed:
        lines += ["", _row(["arm", "accepted by position", "time", "same as the target alone"]), _row([":---"] * 4)]
        lines += [_row(detail_cells(result, summary)) for summary in detailed]
    lines += [f"\n{' '.join(sentences)}" for sentences in result["verdicts"].values()]
    return "\n".join(lines)


def against(result: dict[str, Any], before: dict[str, Any]) -> RenderableType:
    """Arms that two results share: how many times as fast each is now as it was then, over their common prompts."""
    table = Table(title="against the kept result (taken at another time: not paired)", box=None, title_justify="left")
    for name in ("arm", "then", "now", "now / then (95 %)"):
        table.add_column(name)
    for arm in (arm["name"] for arm in result["arms"]):
        now, then = _speeds(result, arm), _speeds(before, arm)
        common = sorted(now.keys() & then.keys())
        interval = geometric_interval([now[prompt] / then[prompt] for prompt in common])
        if interval:
            medians = [statistics.median(speeds[prompt] for prompt in common) for speeds in (then, now)]
            table.add_row(arm, *(f"{speed:,.1f} tokens/s" for speed in medians), f"{interval}, {interval.difference}")
    if not table.row_count:
        return Text("The kept result has no arm and prompt in common with this one.")
    return table


def _speeds(result: dict[str, Any], arm: str) -> dict[str, float]:
    """Each prompt's median speed."""
    found: dict[str, list[float]] = {}
    for trial in result["trials"]:
        if trial["arm"] == arm and trial["tokens_per_s"]:
            found.setdefault(trial["prompt"], []).append(trial["tokens_per_s"])
    return {prompt: statistics.median(speeds) for prompt, speeds in found.items()}


def preamble(result: dict[str, Any]) -> list[str]:
    models = " + ".join(
        f"{model['file']} ({model['parameters'] / 1e6:,.1f} M, {model['bytes'] / 1e6:,.1f} MB)"
        for model in result["models"].values()
    )
    devices = ", ".join(f"{device['description']} ({device['kind']})" for device in result["machine"]["devices"])
    prompts = len({trial["prompt"] for trial in result["trials"]})
    lines = [
        models,
        f"{devices}, {result['machine']['threads']} threads, context {result['context']:,}, "
        f"specdec {result['specdec']}, llama-cpp-python {result['versions']['llama-cpp-python']}",
        f"{prompts} prompts, {result['rounds']} rounds each, arms in alternating order; TTFT and TPOT in ms",
    ]
    for arm, spread in result["noise"].items():
        if spread is not None:
            lines.append(f"noise: {arm} differs from itself by {spread:.1%} between rounds (median over prompts)")
    if result["skipped"]:
        lines.append(f"skipped, too long for the context: {len(result['skipped'])} prompts")
    if result["partial"]:
        lines.append("PARTIAL: interrupted before all runs were done; exactness was not checked")
    return lines


def categories(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(summary["category"] for summary in result["summaries"]))


def of_category(result: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [summary for summary in result["summaries"] if summary["category"] == category]


def summary_cells(summary: dict[str, Any]) -> list[str]:
    speedup = summary["speedup"] or {"mean": None, "low": None, "high": None, "difference": ""}
    bounded = speedup["low"] is not None and speedup["high"] is not None
    return [
        summary["arm"],
        _number(summary["tokens_per_s"], ",.1f"),
        _number(summary["ttft_s"], ",.1f" if (summary["ttft_s"] or 0) < 1 else ",.0f", 1000),
        _number(summary["tpot_ms"], ".2f" if (summary["tpot_ms"] or 0) < 100 else ",.0f"),
        _number(summary["acceptance_rate"], ".0%"),
        _number(summary["tokens_per_step"], ".2f"),
        _number(speedup["mean"], ".2f") + ("x" if speedup["mean"] else ""),
        f"{speedup['low']:.2f}-{speedup['high']:.2f}" if bounded else "",
        speedup["difference"],
    ]


def detail_cells(result: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    positions = " ".join(f"{rate:.0%}" for rate in summary["per_position"][:8])
    more = " \u2026" if len(summary["per_position"]) > 8 else ""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in summary["shares"].items() if share >= 0.005)
    exact = result["exactness"].get(summary["arm"])
    if exact is None:
        same = "not comparable (sampled)" if not result["partial"] else "not checked"
    else:
        parts = [f"{exact['identical']} identical"]
        parts += [f"{exact['rounding tie']} rounding ties"] if exact["rounding tie"] else []
        parts += [f"{exact['wrong']} WRONG"] if exact["wrong"] else []
        same = ", ".join(parts)
    return [summary["arm"], positions + more, shares, same]


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
