"""The report under a run."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics, ModelMemory
from specdec_cli.display.theme import LEGEND, STYLES, safe
from specdec_cli.evaluation.baseline import BaselineResult, speedup_of

_REASONS = {
    "stop": "the model ended its answer",
    "length": "reached -n",
    "stop_string": "reached a stop string",
    "context": "the context is full",
    "interrupted": "interrupted",
}


def run_report(
    report: Metrics,
    settings: str,
    memory: list[ModelMemory] | None,
    baseline: BaselineResult | None,
    load_s: float | None,
    unmeasured: str = "not measured",
    measured_s: float = 0.0,
    rounding: str = "",
) -> RenderableType:
    """All that is known of a run. A recording has no memory and no load time: both are None.

    measured_s: seconds spent on finding out what passes cost. rounding: which passes agree bit for bit, if known.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")

    def row(name: str, value: str) -> None:
        grid.add_row(name, Text(safe(value)))  # a file's name is no markup

    if settings:
        row("settings", settings)
    if report.drafted:
        row("acceptance", _acceptance(report))
        row("by position", _by_position(report))
    if len(report.sources) > 1:
        row("by drafter", _by_source(report))
    if report.distance_per_token is not None:
        row("LOSSY", f"each token's distribution is off by {report.distance_per_token:.3f} (total variation)")
    if report.lengths[1:] and (report.lengths[0] or sum(map(bool, report.lengths)) > 1):
        row("lengths", _lengths(report))
    if report.steps:
        row("steps", f"{report.steps} forward passes of the target, {report.tokens_per_step:.2f} tokens/step")
    row("speed", _speed(report))
    if report.decode_s:
        row("time", _time(report))
    load = "" if load_s is None else f"load {_seconds(load_s)}, "
    if measured_s:
        row("measuring", f"{_seconds(measured_s)} to find out what passes cost, once")
    row("start", f"{load}prompt of {report.prompt_tokens} tokens {_seconds(report.prefill_s)}")
    if memory is not None:
        row("memory", _memory(memory))
    if rounding:
        row("rounding", rounding)
    if baseline is not None or load_s is not None:  # a recording cannot measure one
        row("speedup", _speedup(report, baseline) if baseline else unmeasured)
    row("ended", f"{_REASONS[report.reason]} after {report.emitted} tokens")
    notes = [Text(f"note: {safe(note)}", style="yellow") for note in report.notes]
    return Group(*notes, grid)


def legend() -> Text:
    """What the styles of the tokens mean."""
    line = Text()
    for origin in LEGEND:
        line.append(origin, STYLES[origin]).append("  ")
    return line


def _acceptance(report: Metrics) -> str:
    return f"{report.acceptance_rate:.1%}  ({report.accepted} accepted of {report.drafted} drafted)"


def _by_position(report: Metrics) -> str:
    bars = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    parts = [f"{i}:{bars[min(int(rate * 8), 7)]} {rate:.0%}" for i, rate in enumerate(report.per_position[:8], 1)]
    return "  ".join(parts) + ("  \u2026" if len(report.per_position) > 8 else "")


def _by_source(report: Metrics) -> str:
    sources = report.sources.items()
    return ", ".join(f"{name} {kept / drafted:.0%} of {drafted}" for name, (drafted, kept) in sources if drafted)


def _lengths(report: Metrics) -> str:
    """How often which draft length was used."""
    return "  ".join(f"{n}: {count}\u00d7" for n, count in enumerate(report.lengths) if count)


def _speed(report: Metrics) -> str:
    first = f"first token after {_seconds(report.ttft_s)}"
    if not report.tokens_per_s:
        return first
    return f"{report.tokens_per_s:,.1f} tokens/s  ({report.tpot_ms:.3g} ms a token, {first})"


def _time(report: Metrics) -> str:
    parts = (report.draft_s, report.verify_s, report.sample_s, report.overhead_s)
    names = zip(("draft", "verify", "sample", "other"), parts, strict=True)
    shares = "  ".join(f"{name} {seconds / report.decode_s:.0%}" for name, seconds in names)
    return f"{_seconds(report.decode_s)}:  {shares}"


def _speedup(report: Metrics, baseline: BaselineResult) -> str:
    ratio = speedup_of(report, baseline)
    if ratio is None:
        return "not measured: the answer is too short"
    if baseline.probes:
        return (
            f"{ratio:.2f}x against the target alone, {baseline.tokens_per_s:,.1f} tokens/s by {baseline.probes} probe "
            "steps interleaved in this run"
        )
    speed = f"{ratio:.2f}x against the target alone, measured at {baseline.tokens_per_s:,.1f} tokens/s; "
    if report.distance_per_token is not None:
        return speed + "LOSSY: not the target's distribution"
    if baseline.identical is None:
        return speed + "the same distribution, not the same text (--seed gives the same text)"
    if baseline.divergence is None:
        return speed + "the text is identical"
    divergence = baseline.divergence
    what = "WRONG: this is a bug in specdec" if divergence.bug else "the text differs"
    return speed + f"{what} from token {divergence.position} on: {divergence}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def _memory(models: list[ModelMemory]) -> str:
    """What each model takes, by its parts, and all of them together."""
    shown = []
    for model in models:
        copies = f" + repacked {_bytes(model.repacked)}" if model.repacked else ""
        parts = f"{_bytes(model.weights)}{copies} + cache {_bytes(model.cache)} + buffers {_bytes(model.buffers)}"
        shown.append(f"{model.name} {parts}")
    return f"{_bytes(sum(model.total for model in models))}: {'; '.join(shown)}"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
