"""The report under a run, with its settings as far as they are known."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics, ModelMemory
from specdec_cli.decoding.rules import label
from specdec_cli.display.grids import duration, lines_table, note_lines
from specdec_cli.display.theme import STYLES
from specdec_cli.evaluation.baseline import BaselineResult, speedup_of
from specdec_cli.evaluation.recorded_settings import RecordedSettings

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
    lines = {"settings": settings}
    if report.drafted:
        rate = f"{report.acceptance_rate:.1%}"
        lines["acceptance"] = f"{rate}  ({report.accepted} accepted of {report.drafted} drafted)"
        lines["by position"] = _by_position(report.per_position)
    if len(report.sources) > 1:
        sources = ((name, drafted, kept) for name, (drafted, kept) in report.sources.items() if drafted)
        lines["by drafter"] = ", ".join(f"{name} {kept / drafted:.0%} of {drafted}" for name, drafted, kept in sources)
    if report.distance_per_token is not None:
        distance = f"{report.distance_per_token:.3f} (total variation)"
        lines["LOSSY"] = f"each token's distribution is off by {distance}"
    if report.lengths[1:] and (report.lengths[0] or sum(map(bool, report.lengths)) > 1):
        lines["lengths"] = "  ".join(f"{n}: {count}\u00d7" for n, count in enumerate(report.lengths) if count)
    if report.steps:
        lines["steps"] = f"{report.steps} forward passes of the target, {report.tokens_per_step:.2f} tokens/step"
    lines["speed"] = first = f"first token after {duration(report.ttft_s)}" if report.tokens else ""
    if report.tokens_per_s:
        lines["speed"] = f"{report.tokens_per_s:,.1f} tokens/s  ({report.tpot_ms:.3g} ms a token, {first})"
    if report.decode_s:
        parts = (report.draft_s, report.verify_s, report.sample_s, report.overhead_s)
        names = zip(("draft", "verify", "sample", "other"), parts, strict=True)
        shares = "  ".join(f"{name} {seconds / report.decode_s:.0%}" for name, seconds in names)
        lines["time"] = f"{duration(report.decode_s)}:  {shares}"
    if measured_s:
        lines["measuring"] = f"{duration(measured_s)} to find out what passes cost, once"
    load = "" if load_s is None else f"load {duration(load_s)}, "
    read = f"prompt of {report.prompt_tokens} tokens {duration(report.prefill_s)}"
    lines["start"] = load + (read if report.prompt_tokens else "prompt not read to its end")
    if memory is not None:
        lines["memory"] = _memory(memory)
    lines["rounding"] = rounding
    if baseline is not None or load_s is not None:  # a recording cannot measure one
        lines["speedup"] = _speedup(report, baseline) if baseline else unmeasured
    lines["ended"] = f"{_REASONS[report.reason]} after {report.emitted} tokens"
    return Group(*note_lines(report.notes), lines_table(lines))


def legend() -> Text:
    """What the styles of the tokens mean."""
    line = Text()
    for origin, style in STYLES.items():
        if origin != "plain":
            line.append(origin, style).append("  ")
    return line


def _by_position(rates: Sequence[float]) -> str:
    parts = [f"{i}:{'▁▂▃▄▅▆▇█'[min(int(rate * 8), 7)]} {rate:.0%}" for i, rate in enumerate(rates[:8], 1)]
    return "  ".join(parts) + ("  \u2026" if len(rates) > 8 else "")


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


def settings_line(settings: RecordedSettings, more: Sequence[str] = ()) -> str:
    """Models, drafter and its options, sampling; then `more`. What a recording does not tell is left out."""
    drafter = settings.drafter or ("model" if settings.draft else "")
    parts = [_models(settings, drafter)] if settings.target else []
    if drafter == "none":
        parts.append("alone")
    elif drafter:
        parts += [f"k={settings.draft_tokens}"] if settings.draft_tokens is not None else []
        parts += [f"draft-min-p={settings.draft_min_p}"] if settings.draft_min_p else []
        parts += [f"tree={settings.tree}"] if settings.tree not in (None, 1) else []
        parts += [f"lookahead={settings.lookahead}"] if "lookahead" in drafter and settings.lookahead else []
    if settings.temp:
        parts.append(f"temp={settings.temp}")
        if settings.accept and (drafter != "none" or settings.accept == "coupled"):  # which shapes the baseline, too
            parts.append(f"accept={label(settings.accept)}")
        parts += [f"seed={settings.seed}"] if settings.seed is not None else []
    elif settings.temp is not None:
        parts.append("greedy")
    parts += ["bitwise"] if settings.bitwise else []
    return ", ".join([*parts, *more]).encode("utf-8", "replace").decode()  # a file's name need not be valid text


def _models(settings: RecordedSettings, drafter: str) -> str:
    """The target and what drafts for it, by their files where they have some."""
    target, draft, small = (Path(each or "").name for each in (settings.target, settings.draft, settings.draft_small))
    known = {"model": draft or "model", "self": f"self ({draft})" if draft else "self", "small": small or "small"}
    names = [target]
    for part in [] if drafter in ("", "none") else drafter.split("+"):
        outer, slower, inner = "<".join(reversed(part.split(">"))).partition("<")
        names.append(known.get(outer, outer) + slower + known.get(inner, inner))
    return " + ".join(names)
