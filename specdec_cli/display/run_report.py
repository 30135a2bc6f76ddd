"""What is said under an answer: in a chat a line; after a run the speedup and what it rests on, and all else (`-v`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics, ModelMemory
from specdec_cli.decoding.rules import label
from specdec_cli.display.parts import bar, duration, spark
from specdec_cli.display.tables import lines_table, note_lines
from specdec_cli.engine.baseline import BaselineResult
from specdec_cli.measure.recorded_settings import RecordedSettings

_REASONS = {
    "stop": "the model ended its answer",
    "length": "stopped at -n",
    "stop_string": "stopped at a stop string",
    "context": "stopped: the context is full",
    "interrupted": "interrupted",
}
_LENGTHS = ((0, 0), (1, 4), (5, 8), (9, None))
"""Draft lengths that are counted together."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run. A recording has no baseline, no load time and no memory.

    unmeasured: why there is no baseline. advice: what to do where drafting does not pay. measuring_s: seconds spent on
    finding out what passes cost. rounding: which passes agree bit for bit, if known. machine: threads, context and the
    like, for `-v`.
    """

    metrics: Metrics
    settings: RecordedSettings
    baseline: BaselineResult | None = None
    unmeasured: str = ""
    advice: str = ""
    load_s: float | None = None
    measuring_s: float = 0.0
    memory: Sequence[ModelMemory] = ()
    rounding: str = ""
    machine: Sequence[str] = ()


def run_report(run: RunRecord) -> RenderableType:
    """The most important first."""
    metrics = run.metrics
    lines = {"text": _difference(run.baseline) or (_sameness(run) if run.advice else "")}
    if metrics.drafted:
        rate = f"{metrics.accepted:,} of {metrics.drafted:,} kept ({metrics.acceptance_rate:.0%})"
        lines["drafts"] = f"{rate}, {metrics.tokens_per_step:.1f} tokens a pass"
        lines["lengths"] = _lengths(metrics.lengths)
    if metrics.forced:
        lines["forced"] = f"{metrics.forced:,} of {metrics.emitted:,} tokens took no pass: the grammar left no other"
    if metrics.distance_per_token is not None:
        distance = f"{metrics.distance_per_token:.3f} (total variation)"
        lines["LOSSY"] = f"each token's distribution is off by {distance}"
    lines["times"] = _times(run)
    tokens = f"{metrics.emitted} token{'s' if metrics.emitted != 1 else ''}"
    ended = f"{_REASONS[metrics.reason]} after {tokens}"
    if metrics.reason == "length":
        ended = f"{_REASONS[metrics.reason]} {metrics.emitted}"
    if described := settings_line(run.settings):
        ended += f"; {described}"
    headline = [Text(line, "bold") for line in (_headline(run),) if line]
    return Group(*note_lines(metrics.notes), *headline, *_speeds(run), lines_table(lines), Text(ended))


def run_details(run: RunRecord) -> RenderableType:
    """All else: `-v`."""
    metrics = run.metrics
    lines = {"settings": settings_line(run.settings, run.machine)}
    if metrics.drafted:
        lines["acceptance"] = f"{metrics.acceptance_rate:.1%} of {metrics.drafted:,} drafted tokens"
        rates = [f"{i}:{spark([rate], 1)} {rate:.0%}" for i, rate in enumerate(metrics.per_position[:8], 1)]
        lines["by position"] = "  ".join(rates) + ("  \u2026" if len(metrics.per_position) > 8 else "")
    if len(metrics.sources) > 1:
        sources = ((name, drafted, kept) for name, (drafted, kept) in metrics.sources.items() if drafted)
        lines["by drafter"] = ", ".join(f"{name} {kept / drafted:.0%} of {drafted}" for name, drafted, kept in sources)
    if metrics.lengths[1:]:
        lines["each length"] = "  ".join(f"{n}: {count}\u00d7" for n, count in enumerate(metrics.lengths) if count)
    if metrics.steps:
        lines["steps"] = f"{metrics.steps} forward passes of the target, {metrics.tokens_per_step:.2f} tokens/step"
    if metrics.tokens_per_s:
        lines["speed"] = f"{metrics.tokens_per_s:,.1f} tokens/s, {metrics.tpot_ms:.3g} ms a token"
    if metrics.decode_s:
        parts = (metrics.draft_s, metrics.verify_s, metrics.sample_s, metrics.overhead_s)
        names = zip(("draft", "verify", "sample", "other"), parts, strict=True)
        shares = "  ".join(f"{name} {seconds / metrics.decode_s:.0%}" for name, seconds in names)
        lines["decoding"] = f"{duration(metrics.decode_s)}:  {shares}"
    read = f"{metrics.prompt_tokens:,} tokens in {duration(metrics.prefill_s)}"
    lines["prompt"] = read if metrics.prompt_tokens else "not read to its end"
    lines["memory"] = _memory(run.memory) if run.memory else ""
    lines["rounding"] = run.rounding
    return Group(Text(), lines_table(lines))


def _headline(run: RunRecord) -> str:
    """The speedup, as far as it may be claimed, and whether the text is the target's own."""
    metrics, baseline = run.metrics, run.baseline
    if metrics.drafted and baseline is not None:
        return ", ".join(filter(None, (_claim(baseline), _sameness(run))))
    speed = f"{metrics.tokens_per_s:,.1f} tokens/s" if metrics.tokens_per_s else ""
    what = "the target alone" if run.settings.drafter == "none" else "nothing was drafted"
    if metrics.drafted or not speed:
        what = f"speedup {run.unmeasured}" if run.unmeasured else ""
    return run.advice or ", ".join(filter(None, (speed, what, _sameness(run))))


def _claim(baseline: BaselineResult) -> str:
    """What was measured allows to say: a ratio only if its interval excludes 1."""
    speedup = baseline.speedup
    if speedup is None or speedup.low is None or speedup.high is None:
        few = "too few steps ran without drafts" if baseline.probes else "too little was measured"
        return f"speedup unknown: {few}"
    if speedup.difference == "faster":
        return f"{speedup.mean:.2f}x faster than the target alone ({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.difference == "slower":
        return f"slower than the target alone: {speedup}"
    if speedup.difference == "inconclusive":
        return "speedup unknown: the measurements differ too much"
    return "as fast as the target alone"


def _sameness(run: RunRecord) -> str:
    """How the text compares with the target's own, in a word."""
    baseline = run.baseline
    if run.metrics.distance_per_token is not None:
        return "LOSSY: not the target's distribution"
    if baseline is None or baseline.probes:
        return ""
    if baseline.identical is None:
        return "same distribution"
    if (divergence := baseline.divergence) is None:
        return "same text"
    where = f"from token {divergence.position} on"
    return f"WRONG {where}: this is a bug in specdec" if divergence.bug else f"another text {where}"


def _difference(baseline: BaselineResult | None) -> str:
    """Why the text is not the target's own."""
    if baseline is None or baseline.probes or baseline.identical:
        return ""
    return str(baseline.divergence or "sampled anew; with --seed it is the target's own")


def _speeds(run: RunRecord) -> list[Text]:
    """Both speeds, as bars, if they bear out what the headline claims; where nothing was drafted there is one."""
    mine, alone = run.metrics.tokens_per_s, run.baseline and run.baseline.tokens_per_s
    if run.metrics.drafted and mine and alone:
        claim = run.baseline.claim if run.baseline else None
        speeds, cells = {"with drafts": mine, "alone": alone}, 20
        if claim is None or (mine > alone) != (claim > 1):
            speeds = {}
    else:
        speeds, cells = {"alone": mine} if mine and run.advice else {}, 0
    most = max(speeds.values(), default=1.0)
    return [
        Text(f"  {name:<11} {speed:>7,.1f} tok/s {bar(speed / most, cells) if cells else ''}".rstrip())
        for name, speed in speeds.items()
    ]


def _lengths(counts: Sequence[int]) -> str:
    """How many steps drafted how much."""
    groups = {}
    for low, high in _LENGTHS:
        if steps := sum(counts[low : None if high is None else high + 1]):
            groups[f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"] = steps
    most = max(groups.values())
    return "   ".join(f"{name} {bar(steps / most, 8)} {steps}" for name, steps in groups.items())


def _times(run: RunRecord) -> str:
    parts = [f"load {duration(run.load_s)}"] if run.load_s is not None else []
    parts += [f"measuring {duration(run.measuring_s)}"] if run.measuring_s else []
    parts += [f"first token {duration(run.metrics.ttft_s)}"] if run.metrics.tokens else []
    parts += [f"decoding {duration(run.metrics.decode_s)}"] if run.metrics.decode_s else []
    return ", ".join(parts)


def _memory(models: Sequence[ModelMemory]) -> str:
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
    """Models, drafter and its options, sampling; then `more`. What a recording does not have is left out."""
    drafter = settings.drafter or ("model" if settings.draft else "")
    parts = [_models(settings, drafter)] if settings.target else []
    if drafter == "none":
        parts.append("alone")
    elif drafter:
        parts += [f"k={settings.draft_tokens}"] if settings.draft_tokens is not None else []
        parts += [f"draft-min-p={settings.draft_min_p}"] if settings.draft_min_p else []
        parts += [f"tree={settings.tree}"] if settings.tree not in (None, 1) else []
        parts += [f"lookahead={settings.lookahead}"] if "lookahead" in drafter and settings.lookahead else []
    if settings.temperature:
        parts.append(f"temp={settings.temperature}")
        if settings.accept and (drafter != "none" or settings.accept == "coupled"):  # which shapes the baseline, too
            parts.append(f"accept={label(settings.accept)}")
        parts += [f"seed={settings.seed}"] if settings.seed is not None else []
    elif settings.temperature is not None:
        parts.append("greedy")
    parts += ["bitwise"] if settings.bitwise else []
    parts += [f"{name.replace('_', '-')}={files}" for name, files in settings.adapters.items() if files]
    return ", ".join([*parts, *more])


def _models(settings: RecordedSettings, drafter: str) -> str:
    """The target and what drafts for it, by their files where they have some."""
    target, draft, small = (Path(each or "").name for each in (settings.target, settings.draft, settings.draft_small))
    known = {"model": draft or "model", "self": f"self ({draft})" if draft else "self", "small": small or "small"}
    names = [target]
    for part in [] if drafter in ("", "none") else drafter.split("+"):
        outer, slower, inner = "<".join(reversed(part.split(">"))).partition("<")
        names.append(known.get(outer, outer) + slower + known.get(inner, inner))
    return " + ".join(names)


def turn_line(metrics: Metrics, baseline: BaselineResult | None, cached_tokens: int) -> Text:
    """baseline: the target alone, as far as it is known. cached_tokens: of the prompt, read in earlier turns."""
    parts = [f"{metrics.tokens_per_s:,.1f} tokens/s"] if metrics.tokens_per_s else []
    if baseline and baseline.claim and baseline.speedup:
        parts.append(f"{baseline.claim:.1f}x the target alone {baseline.speedup.bounds}".rstrip())
    if metrics.drafted:
        parts.append(f"{metrics.acceptance_rate:.0%} of {metrics.drafted:,} drafted tokens kept")
        parts.append(f"{metrics.tokens_per_step:.1f} tokens a pass")
    parts.append(f"{metrics.prompt_tokens:,} tokens read" + (f", {cached_tokens:,} known" if cached_tokens else ""))
    if metrics.reason != "stop":
        parts.append(_REASONS[metrics.reason])
    return Text("; ".join(parts))


def alone_line(drafted: Metrics, alone: Metrics, differs_at: int | None) -> Text:
    """How the target alone answered: the same text or not, and in what time. differs_at: the first other token."""
    if differs_at is not None:
        return Text(f"the target alone wrote another text from token {differs_at + 1} on")
    if not drafted.drafted:
        return Text("the target alone wrote the same text, token for token; nothing had been drafted")
    times = f"{alone.decode_s:.1f} s; with drafts it took {drafted.decode_s:.1f} s"
    return Text(f"the target alone wrote the same text, token for token, in {times}")
