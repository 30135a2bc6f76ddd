"""A comparison on the screen and as Markdown."""

import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdec_cli.display.theme import can_paint, safe
from specdec_cli.evaluation.comparison_result import ComparisonResult
from specdec_cli.evaluation.recorded_settings import RecordedSettings
from specdec_cli.evaluation.statistics import Summary, geometric_interval, paired_ratios
from specdec_cli.evaluation.trials import Trial

_INTERVAL_S = 0.25
_PARTIAL = "PARTIAL: stopped before all runs were done"
_FINDINGS = {"faster": ("faster", "green"), "slower": ("slower", "red"), "no measurable difference": ("=", "dim")}
"""What a table has room for; "=" is spelt out in the sentences below it."""
_EXACTNESS = {
    "identical": "identical",
    "rounding": "differ by rounding (proved)",
    "wrong": "WRONG",
    "not classified": "different, not classified",
}

DETAILS = ("arm", "accepted by position", "time", "answers as the target alone's")
COLUMNS = ("arm", "tok/s", "TTFT", "TPOT", "accept", "tok/step", "speedup", "95 %", "")


class Progress(ExitStack):
    """While it runs: how far it is, the time left, and each variant's ratio so far. Silent where there is no terminal.

    baselines: by variant.
    """

    def __init__(self, out: TextIO, baselines: Mapping[str, str]) -> None:
        super().__init__()
        self._live = Live(console=Console(file=out, highlight=False), auto_refresh=False, transient=True)
        if can_paint(out):
            self.enter_context(self._live)
        self._baselines = baselines
        self._started = monotonic()
        self._next = 0.0

    def update(self, trials: Sequence[Trial], total: int) -> None:
        """Show the state after one more trial, a few times a second at most."""
        now = monotonic()
        if not self._live.is_started or now < self._next:
            return
        self._next = now + _INTERVAL_S
        left = (now - self._started) / len(trials) * (total - len(trials))
        lines = [Text(f"{len(trials)} of {total} runs, about {left:,.0f} s left")]
        for arm, baseline in self._baselines.items():
            speeds = [trial.tokens_per_s for trial in trials if trial.arm == arm and trial.tokens_per_s]
            if speeds:
                ratios = paired_ratios(trials, arm, baseline).values() if arm != baseline else ()
                so_far = f", {statistics.geometric_mean(ratios):.2f}x so far" if ratios else ""
                lines.append(Text(f"  {arm}: {statistics.median(speeds):,.1f} tokens/s{so_far}"))
        self._live.update(Group(*lines), refresh=True)


def tables(result: ComparisonResult) -> list[RenderableType]:
    """The result as Rich renderables: a table by category, positions and time, exactness, the verdicts."""
    parts: list[RenderableType] = [Text(_PARTIAL, style="bold yellow")] if result.partial else []
    parts += [Text(safe(line), style="yellow" if line.startswith("note") else "dim") for line in preamble(result)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(COLUMNS[0], min_width=12, overflow="fold")
    for name in COLUMNS[1:]:
        table.add_column(name, justify="right" if name else "left", no_wrap=True, overflow="fold")
    for category in result.categories:
        if len(result.categories) > 1:
            table.add_row(Text(safe(category), style="bold"))
        for summary in result.of_category(category):
            arm, *cells, difference = summary_cells(summary)
            table.add_row(_breakable(arm), *cells, Text(*_FINDINGS.get(difference, ("", ""))))
    parts += [table, Text()]
    details = Table(box=None, padding=(0, 1), header_style="bold")
    for name in DETAILS:
        details.add_column(name, overflow="fold", min_width=20 if name == "arm" else 0)
    for arm, *cells in details_of(result):
        details.add_row(_breakable(arm), *cells)
    if details.row_count:
        parts += [details, Text()]
    for finding, *sentences in result.verdicts.values():
        parts += [Text(safe(finding), style="bold"), *(Text(safe(f"  - {sentence}")) for sentence in sentences)]
    return parts


def _breakable(arm: str) -> Text:
    return Text(safe(re.sub(r",(?=\S)", ", ", arm)))  # a narrow column breaks at spaces


def markdown(result: ComparisonResult) -> str:
    """The result as Markdown, to be pasted into an issue."""
    lines = [f"**{_PARTIAL}**  "] if result.partial else []
    lines += [f"{line}  " for line in preamble(result)]
    for category in result.categories:
        lines += ["", f"**{category}**", "", _row(COLUMNS), _row([":---", *["---:"] * 7, ":---"])]
        lines += [_row(summary_cells(summary)) for summary in result.of_category(category)]
    if details := details_of(result):
        lines += ["", *map(_row, [DETAILS, [":---"] * 4, *details])]
    for finding, *sentences in result.verdicts.values():
        lines += ["", finding, "", *(f"- {sentence}" for sentence in sentences)]
    return safe("\n".join(lines))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def against(result: ComparisonResult, before: ComparisonResult) -> RenderableType:
    """How many times as fast each variant is now as it was then, over the prompts and settings that both have."""
    if result.models != before.models:
        return Text("The kept result is of other models: nothing to compare.", style="bold")
    table = Table(title="against the kept result (taken at another time: not paired)", box=None, title_justify="left")
    for name in ("arm", "then", "now", "now / then", "95 %", ""):
        table.add_column(name)
    old = {arm.name: _decoding(arm.settings) for arm in before.arms}
    for arm in result.arms:
        now, then = result.speeds(arm.name), before.speeds(arm.name)
        common = sorted(now.keys() & then.keys())
        interval = geometric_interval([now[prompt] / then[prompt] for prompt in common])
        if interval and _decoding(arm.settings) == old.get(arm.name):
            medians = [statistics.median(speeds[prompt] for prompt in common) for speeds in (then, now)]
            cells = [f"{speed:,.1f} tok/s" for speed in medians]
            table.add_row(arm.name, *cells, f"{interval.mean:.2f}x", interval.bounds, interval.difference)
    if not table.row_count:
        return Text("The kept result has no arm and prompt in common with this one.", style="bold")
    facts = {
        "threads": (before.machine.threads, result.machine.threads),
        "platform": (before.machine.platform, result.machine.platform),
        "versions": (before.versions, result.versions),
    }
    differing = [f"differs: {name}: {then} then, {now} now" for name, (then, now) in facts.items() if then != now]
    return Group(table, *(Text(line, style="yellow") for line in differing))


_PLACE = dict.fromkeys(("target", "draft", "threads", "ctx", "gpu_layers", "gpu_layers_draft", "seed"))


def _decoding(settings: RecordedSettings) -> RecordedSettings:
    """The settings but for where they ran, which is said apart. Older results do not name `bitwise`."""
    return replace(settings, **_PLACE, bitwise=bool(settings.bitwise))


def preamble(result: ComparisonResult) -> list[str]:
    models = " + ".join(
        f"{model.file} ({model.parameters / 1e6:,.1f} M, {model.bytes / 1e6:,.1f} MB)"
        for model in result.models.values()
    )
    devices = ", ".join(f"{device.description} ({device.kind})" for device in result.machine.devices)
    prompts = len({trial.prompt for trial in result.trials})
    noise = ((arm, spread) for arm, spread in result.noise.items() if spread is not None)
    lines = [
        models + (f", a corpus of {result.corpus:,} tokens" if result.corpus else ""),
        f"{devices}, {_count(result.machine.threads, 'thread')}, context {result.context:,}, "
        f"specdec {result.specdec}, llama-cpp-python {result.versions['llama-cpp-python']}",
        f"{_count(prompts, 'prompt')}, {_count(result.rounds, 'round')} each, arms in alternating order; "
        "TTFT and TPOT in ms",
        *(
            f"noise: {arm} differs from itself by {spread:.1%} between rounds (median over prompts)"
            for arm, spread in noise
        ),
    ]
    if result.skipped:
        lines.append(f"skipped, too long for the context: {_count(len(result.skipped), 'prompt')}")
    return lines + [f"note: {note}" for note in result.notes]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def summary_cells(summary: Summary) -> list[str]:
    """The cells of `COLUMNS`."""
    speedup = summary.speedup
    return [
        summary.arm + (" (lossy)" if summary.distance_per_token is not None else ""),
        _number(summary.tokens_per_s, ",.1f"),
        _number(summary.ttft_s, ",.1f" if (summary.ttft_s or 0) < 1 else ",.0f", 1000),
        _number(summary.tpot_ms, ".2f" if (summary.tpot_ms or 0) < 100 else ",.0f"),
        _number(summary.acceptance_rate, ".0%"),
        _number(summary.tokens_per_step, ".2f"),
        *((f"{speedup.mean:.2f}x", speedup.bounds, speedup.difference) if speedup else ("", "", "")),
    ]


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)


def details_of(result: ComparisonResult) -> list[list[str]]:
    """The cells of `DETAILS` for each variant that drafted, or whose answers were compared with the target's own."""
    rows = []
    for summary in result.of_category("all"):
        exactness = result.exactness.get(summary.arm)
        if not summary.per_position and exactness is None:
            continue
        positions = [
            *(f"{rate:.0%}" for rate in summary.per_position[:8]),
            *["\u2026"][: len(summary.per_position) > 8],
        ]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.shares.items() if share >= 0.005)
        same = "not comparable (sampled)"
        if (distance := summary.distance_per_token) is not None:
            same = f"LOSSY: each token's distribution is off by {distance:.3f} (total variation)"
        if exactness is not None:
            counts = ((exactness.get(kind, 0), kind, word) for kind, word in _EXACTNESS.items())
            same = ", ".join(f"{count} {word}" for count, kind, word in counts if count or kind == "identical")
        rows.append([summary.arm, " ".join(positions), shares, same])
    return rows
