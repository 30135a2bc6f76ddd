"""A comparison on the screen and in Markdown."""

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_cli.decoding.statistics import MIN_PROMPTS
from specdec_cli.decoding.wording import counted
from specdec_cli.display.tables import FittingTable, bullets, plain_table
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.measure.saved_comparisons import changes
from specdec_cli.measure.trials import Summary

_NOISY = 0.1
"""If the baseline's rounds differ by more than this, a warning comes before the figures."""
_NAMED = 6
"""Small categories that are listed by name."""
_PARTIAL = "PARTIAL: stopped before all runs were done"
_FINDINGS = {
    "faster": ("faster", "green"),
    "slower": ("slower", "red"),
    "WRONG": ("WRONG", "bold red"),
    "no difference": ("=", ""),
    "inconclusive": ("?", "yellow"),
    "nothing drafted": ("0", ""),
    "few accepted": ("0", ""),
    "no interval": ("?", "yellow"),
}
"""A finding as a word or sign that fits a screen; `_SIGNS` explains the signs."""
_SIGNS = {
    "no difference": "=: as fast as the target alone, the whole interval is near 1 (0.91 to 1.1)",
    "inconclusive": "?: inconclusive, the interval contains 1 and is wider",
    "nothing drafted": "0: nothing was drafted",
    "few accepted": "0: hardly any tokens came from drafts",
    "no interval": "?: no interval",
}
_STYLES = {"yes": "bold green", "no": "bold", "wrong": "bold red"}
_EXACTNESS = {
    "identical": "identical",
    "rounding": "differ by rounding (proved)",
    "wrong": "WRONG",
    "not classified": "different, not classified (interrupted)",
}

DETAILS = ("variant", "answers", "accepted by position", "time")
COLUMNS = ("variant", "speedup", "95%", "", "tok/s", "tok/step", "cost", "accept", "TTFT", "TPOT")


def tables(result: ComparisonResult) -> list[RenderableType]:
    """The result as Rich renderables: the verdict, all variants by rank, positions and time, advice, conditions."""
    verdict = result.verdict
    parts: list[RenderableType] = [Text(_PARTIAL, style="bold yellow")] if result.partial else []
    parts += [Text(verdict.headline, style=_STYLES.get(verdict.pays, "bold yellow")), Text(verdict.sentence)]
    parts += [Text(verdict.recommendation, style="bold")]
    parts += [Text(line, style="yellow") for line in _notes(result)]
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
    parts += [bullets(result.advice), Text()] if result.advice else []
    return parts + [Text(line, style="dim") for line in preamble(result)]


def _breakable(name: str) -> Text:
    return Text(re.sub(r",(?=\S)", ", ", name))  # a narrow column breaks at spaces


def markdown(result: ComparisonResult) -> str:
    verdict = result.verdict
    lines = [f"**{_PARTIAL}**  "] if result.partial else []
    lines += [f"**{verdict.headline}**  ", f"{verdict.sentence}  ", f"**{verdict.recommendation}**  "]
    lines += [f"{line}  " for line in _notes(result)]
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
    """The speed of each variant now and then, over the prompts and settings that both results have. A ratio is shown
    only if its interval excludes 1.
    """
    if result.models != before.models:
        return Text("The saved result is about other models, so there is nothing to compare.", style="bold")
    columns = ("variant", "then", "now", "now / then", "95%", "")
    table = plain_table(columns, left=columns)
    title = "tokens/s against the saved result (measured at another time, so not paired)"
    table.title, table.title_justify = title, "left"
    table.padding = (0, 1)
    alone = {each.name for each in result.variants if each.is_baseline}
    drifted = []
    for each in changes(before, result):
        if each.name in alone and each.ratio.excludes_one:
            how = f"{each.name} is {each.ratio.difference} now"
            drifted.append(f"{how}, so the machine differs: compare the other rows with that one")
        speeds = (f"{speed:,.1f}" for speed in (each.then, each.now))
        ratio = f"{each.ratio.mean:.2f}x" if each.ratio.excludes_one else ""
        table.add_row(each.name, *speeds, ratio, each.ratio.bounds, each.ratio.difference)
    if not table.row_count:
        return Text("The saved result has no variant and prompt in common with this one.", style="bold")
    facts = {
        "threads": (before.machine.threads, result.machine.threads),
        "platform": (before.machine.platform, result.machine.platform),
        "versions": (before.versions, result.versions),
    }
    differing = [f"different {name}: {then} then, {now} now" for name, (then, now) in facts.items() if then != now]
    above, below = ([Text(line, style="yellow") for line in lines] for lines in (drifted, differing))
    return Group(*above, table, *below)


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
        f"{devices}, {counted(result.machine.threads, 'thread')}, context {result.context:,}, "
        f"specdec {result.specdec}, llama-cpp-python {result.versions['llama-cpp-python']}",
        f"{counted(prompts, 'prompt')}, {counted(result.rounds, 'round')} each, variants in alternating order; "
        "TTFT and TPOT in ms",
        *(_noise(name, spread) for name, spread in result.noise.items() if spread is not None and spread <= _NOISY),
    ]
    if result.skipped:
        lines.append(f"skipped because too long for the context: {counted(len(result.skipped), 'prompt')}")
    return lines


def warnings(result: ComparisonResult) -> list[str]:
    """What a reader should know before the figures: on a noisy machine they mean less."""
    noisy = [_noise(name, spread) for name, spread in result.noise.items() if spread is not None and spread > _NOISY]
    return [f"noisy machine: {line}" for line in noisy]


def _notes(result: ComparisonResult) -> list[str]:
    return [*warnings(result), *(f"note: {note}" for note in result.notes)]


def _noise(name: str, spread: float) -> str:
    return f"the rounds of {name} differ by {spread:.1%} (median over prompts)"


def key(result: ComparisonResult, signs: bool = False) -> list[str]:
    """What the columns mean, and which categories have no table. signs: explain those of a screen."""
    lines = [
        "tok/s: after the first token; geometric means, so their ratio is the speedup",
        "speedup = tok/step / cost; empty unless the interval excludes 1",
        "cost: time of a step with its draft / time of a step of the target alone",
    ]
    if signs:
        shown = {finding(result, each) for name in result.categories for each in result.of_category(name)}
        lines += [words for each, words in _SIGNS.items() if each in shown]
    if small := result.small_categories:
        names = f"{', '.join(small[:_NAMED])}{' ...' if len(small) > _NAMED else ''}"
        lines.append(f"no table for categories with fewer than {MIN_PROMPTS} prompts: {names}")
    return lines


def finding(result: ComparisonResult, summary: Summary) -> str:
    """What a variant's speed shows, or that its answers are WRONG; empty for a baseline."""
    if result.exactness.get(summary.variant, {}).get("wrong"):
        return "WRONG"
    if summary.variant in {each.baseline for each in result.variants}:
        return ""
    return "no interval" if summary.finding == "too few prompts" else summary.finding  # the verdict says why


def summary_cells(result: ComparisonResult, summary: Summary) -> list[str]:
    """The cells of `COLUMNS`."""
    return [
        summary.variant + (" (lossy)" if summary.distance_per_token is not None else ""),
        f"{summary.claimed.mean:.2f}x" if summary.claimed else "",
        summary.bounds,
        finding(result, summary),
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
    """The cells of `DETAILS` for each variant that drafted, or whose answers were compared with the target's.

    Shares that come from few drafts are in brackets.
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
        same = "sampled, so not compared"
        if (distance := summary.distance_per_token) is not None:
            same = f"LOSSY: each token's distribution is off by {distance:.3f} (total variation)"
        if exactness is not None:
            counts = ((exactness.get(kind, 0), kind, word) for kind, word in _EXACTNESS.items())
            same = ", ".join(f"{count} {word}" for count, kind, word in counts if count or kind == "identical")
        rows.append([summary.variant, same, " ".join(positions), shares])
    return rows
