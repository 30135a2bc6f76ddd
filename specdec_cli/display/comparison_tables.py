"""A comparison on the screen and as Markdown."""

import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.statistics import LEAST_PROMPTS
from specdec_cli.display.tables import FittingTable, plain_table
from specdec_cli.display.terminal import SafeConsole, can_paint
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.measure.kept_comparisons import changes
from specdec_cli.measure.trials import Summary, Trial, paired_ratios

_INTERVAL_S = 0.25
_NOISY = 0.1
"""Of a median difference between rounds: more is said before the figures."""
_NAMED = 6
"""Categories that are named where they have no table."""
_PARTIAL = "PARTIAL: stopped before all runs were done"
_FINDINGS = {
    "faster": ("faster", "green"),
    "slower": ("slower", "red"),
    "WRONG": ("WRONG", "bold red"),
    "no difference": ("=", ""),
    "inconclusive": ("?", "yellow"),
    "drafted nothing": ("0", ""),
}
"""What a table on a screen has room for; `_SIGNS` spells out the signs."""
_SIGNS = {
    "no difference": "=: no difference, the whole interval is near 1 (0.91 to 1.1)",
    "inconclusive": "?: inconclusive, the interval holds 1 and is wider",
    "drafted nothing": "0: almost nothing was drafted, so this is the target's own speed",
}
_STYLES = {"yes": "bold green", "no": "bold", "wrong": "bold red"}
_EXACTNESS = {
    "identical": "identical",
    "rounding": "differ by rounding (proved)",
    "wrong": "WRONG",
    "not classified": "different, not classified",
}

DETAILS = ("variant", "answers", "accepted by position", "time")
COLUMNS = ("variant", "speedup", "95 %", "", "tok/s", "tok/pass", "cost", "accept", "TTFT", "TPOT")


class Progress(ExitStack):
    """While it runs: how far it is, the time left, and each variant's ratio so far. Silent where there is no terminal.

    baselines: by variant.
    """

    def __init__(self, out: TextIO, baselines: Mapping[str, str]) -> None:
        super().__init__()
        self._live = Live(console=SafeConsole(file=out), auto_refresh=False, transient=True)
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
        for name, baseline in self._baselines.items():
            speeds = [trial.tokens_per_s for trial in trials if trial.variant == name and trial.tokens_per_s]
            if speeds:
                ratios = paired_ratios(trials, name, baseline).values() if name != baseline else ()
                so_far = f", {statistics.geometric_mean(ratios):.2f}x so far" if ratios else ""
                lines.append(Text(f"  {name}: {statistics.median(speeds):,.1f} tokens/s{so_far}"))
        self._live.update(Group(*lines), refresh=True)


def tables(result: ComparisonResult) -> list[RenderableType]:
    """The result as Rich renderables: the answer, all variants by rank, positions and time, advice, conditions."""
    verdict = result.verdict
    parts: list[RenderableType] = [Text(_PARTIAL, style="bold yellow")] if result.partial else []
    parts += [Text(str(verdict), style=_STYLES.get(verdict.pays, "bold yellow")), Text(verdict.sentence)]
    parts += [Text(line, style="yellow") for line in warnings(result)]
    table = FittingTable(COLUMNS)
    for category in result.categories:
        if len(result.categories) > 1:
            table.add([Text(category, style="bold")])
        for summary in result.of_category(category):
            name, speedup, bounds, difference, *cells = summary_cells(result, summary)
            best = category == "all" and summary.variant == verdict.winner
            label = _breakable(f"\u2192 {name}" if best else f"  {name}" if verdict.winner else name)
            finding = Text(*_FINDINGS.get(difference, ("", "")))
            table.add([label, speedup, bounds, finding, *cells], style="bold" if best else "")
    parts += [Text(), table]
    parts += [Text(line, style="dim") for line in key(result, signs=True)] + [Text()]
    details = FittingTable(DETAILS, folds=True)
    for name, *cells in details_of(result):
        details.add([_breakable(name), *cells])
    parts += [details, Text()] if details.rows else []
    for sentence in result.advice:
        line = Table.grid(padding=(0, 1))
        line.add_row("-", sentence)
        parts.append(line)
    parts += [Text()] * bool(result.advice)
    return parts + [Text(line, style="dim") for line in preamble(result)]


def _breakable(name: str) -> Text:
    return Text(re.sub(r",(?=\S)", ", ", name))  # a narrow column breaks at spaces


def markdown(result: ComparisonResult) -> str:
    """The result as Markdown, to be pasted into an issue."""
    verdict = result.verdict
    lines = [f"**{_PARTIAL}**  "] if result.partial else []
    lines += [f"**{verdict}**  ", verdict.sentence + "  ", *(f"{line}  " for line in warnings(result))]
    for category in result.categories:
        lines += ["", f"**{category}**", "", _row(COLUMNS), _row([":---", *["---:"] * 2, ":---", *["---:"] * 6])]
        for summary in result.of_category(category):
            name, *cells = summary_cells(result, summary)
            best = category == "all" and summary.variant == verdict.winner
            lines.append(_row([f"**{name}**" if best else name, *cells]))
    lines += ["", *(f"{line}  " for line in key(result))]
    if details := details_of(result):
        lines += ["", *map(_row, [DETAILS, [":---"] * 4, *details])]
    lines += ["", *(f"- {sentence}" for sentence in result.advice), ""] if result.advice else [""]
    return "\n".join(lines + [f"{line}  " for line in preamble(result)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def against(result: ComparisonResult, before: ComparisonResult) -> RenderableType:
    """How many times as fast each variant is now as it was then, over the prompts and settings that both have."""
    if result.models != before.models:
        return Text("The kept result is of other models: nothing to compare.", style="bold")
    columns = ("variant", "then", "now", "now / then", "95 %", "")
    table = plain_table(columns, left=columns)
    table.title, table.title_justify = "against the kept result (taken at another time: not paired)", "left"
    table.padding = (0, 1)
    for each in changes(before, result):
        speeds = (f"{speed:,.1f} tok/s" for speed in (each.then, each.now))
        table.add_row(each.name, *speeds, f"{each.ratio.mean:.2f}x", each.ratio.bounds, each.ratio.difference)
    if not table.row_count:
        return Text("The kept result has no variant and prompt in common with this one.", style="bold")
    facts = {
        "threads": (before.machine.threads, result.machine.threads),
        "platform": (before.machine.platform, result.machine.platform),
        "versions": (before.versions, result.versions),
    }
    differing = [f"differs: {name}: {then} then, {now} now" for name, (then, now) in facts.items() if then != now]
    return Group(table, *(Text(line, style="yellow") for line in differing))


def preamble(result: ComparisonResult) -> list[str]:
    """What was measured, where and how."""
    models = " + ".join(
        f"{model.file} ({model.parameters / 1e6:,.1f} M, {model.bytes / 1e6:,.1f} MB)"
        for model in result.models.values()
    )
    devices = ", ".join(f"{device.description} ({device.kind})" for device in result.machine.devices)
    prompts = len({trial.prompt for trial in result.trials})
    lines = [
        models + (f", a corpus of {result.corpus:,} tokens" if result.corpus else ""),
        f"{devices}, {_count(result.machine.threads, 'thread')}, context {result.context:,}, "
        f"specdec {result.specdec}, llama-cpp-python {result.versions['llama-cpp-python']}",
        f"{_count(prompts, 'prompt')}, {_count(result.rounds, 'round')} each, variants in alternating order; "
        "TTFT and TPOT in ms",
        *(_noise(name, spread) for name, spread in result.noise.items() if spread is not None and spread <= _NOISY),
    ]
    if result.skipped:
        lines.append(f"skipped, too long for the context: {_count(len(result.skipped), 'prompt')}")
    return lines


def warnings(result: ComparisonResult) -> list[str]:
    """What a reader should know before the figures: a noisy machine, and the notes."""
    noisy = [_noise(name, spread) for name, spread in result.noise.items() if spread is not None and spread > _NOISY]
    return [f"noisy machine: {line}" for line in noisy] + [f"note: {note}" for note in result.notes]


def _noise(name: str, spread: float) -> str:
    return f"{name} differs from itself by {spread:.1%} between rounds (median over prompts)"


def key(result: ComparisonResult, signs: bool = False) -> list[str]:
    """What the columns mean, and which categories have no table. signs: as a screen has them."""
    lines = ["speedup = tok/pass / cost; cost: of a pass, in passes of the target alone"]
    if signs:
        shown = {summary_cells(result, each)[3] for name in result.categories for each in result.of_category(name)}
        lines += [words for finding, words in _SIGNS.items() if finding in shown]
    if small := result.small_categories:
        names = f"{', '.join(small[:_NAMED])}{' ...' if len(small) > _NAMED else ''}"
        lines.append(f"in all prompts only, with fewer than {LEAST_PROMPTS} prompts each: {names}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def summary_cells(result: ComparisonResult, summary: Summary) -> list[str]:
    """The cells of `COLUMNS`."""
    speedup = summary.claimed
    own = "1.00x" if summary.variant in {each.baseline for each in result.variants} else ""
    finding = speedup.difference if speedup else "drafted nothing" if summary.speedup else ""
    if result.exactness.get(summary.variant, {}).get("wrong"):
        finding = "WRONG"
    return [
        summary.variant + (" (lossy)" if summary.distance_per_token is not None else ""),
        *((f"{speedup.mean:.2f}x", speedup.bounds) if speedup else (own, "")),
        finding,
        _number(summary.tokens_per_s, ",.1f"),
        _number(summary.tokens_per_step, ".2f"),
        _number(summary.pass_cost, ".2f"),
        _number(summary.acceptance_rate, ".0%"),
        _number(summary.ttft_s, ",.1f" if (summary.ttft_s or 0) < 1 else ",.0f", 1000),
        _number(summary.tpot_ms, ".2f" if (summary.tpot_ms or 0) < 100 else ",.0f"),
    ]


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)


def details_of(result: ComparisonResult) -> list[list[str]]:
    """The cells of `DETAILS` for each variant that drafted, or whose answers were compared with the target's own.

    In brackets: shares of few drafts.
    """
    rows = []
    for summary in result.of_category("all"):
        exactness = result.exactness.get(summary.variant)
        if not summary.per_position and exactness is None:
            continue
        firm = summary.firm_positions
        positions = [f"{rate:.0%}" if i < firm else f"({rate:.0%})" for i, rate in enumerate(summary.per_position[:8])]
        positions += ["\u2026"][: len(summary.per_position) > 8]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.shares.items() if share >= 0.05)
        same = "not comparable (sampled)"
        if (distance := summary.distance_per_token) is not None:
            same = f"LOSSY: each token's distribution is off by {distance:.3f} (total variation)"
        if exactness is not None:
            counts = ((exactness.get(kind, 0), kind, word) for kind, word in _EXACTNESS.items())
            same = ", ".join(f"{count} {word}" for count, kind, word in counts if count or kind == "identical")
        rows.append([summary.variant, same, " ".join(positions), shares])
    return rows
