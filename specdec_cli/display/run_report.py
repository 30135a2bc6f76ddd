"""The lines under an answer: the report of a run and what `-v` adds to it, and one line in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.rules import label
from specdec_cli.decoding.wording import counted
from specdec_cli.display.parts import bar, duration, spark
from specdec_cli.display.tables import lines_table, note_lines
from specdec_cli.engine.baseline import BaselineResult
from specdec_cli.gguf.memory import ModelMemory
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.settings.options import AUTO
from specdec_cli.user_files import format_bytes

_REASONS = {
    "stop": "the model ended its answer",
    "length": "stopped at -n",
    "stop_string": "stopped at a stop string",
    "context": "stopped: the context is full",
    "interrupted": "interrupted",
}
_UNDECIDED = {
    "inconclusive": "too uneven to compare",
    "too few prompts": "too short to compare",
}
_ENOUGH_PARTS = 6
"""Of an answer, for an interval that is wide only if the machine or the text is uneven: with three parts that differ by
5 %, half of all runs at 1.2x have an interval that contains 1; with eight, none.
"""
_LENGTHS = ((0, 0), (1, 4), (5, 8), (9, None))
"""Draft lengths that are counted together."""
_MAX_LINES, _MAX_IDLE_LINES = 3, 2
"""Lines of notes and report, without the bars; the second is for answers without a draft."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run. A recording has no load time and no memory.

    notes: what the user should know. unmeasured: why there is no baseline. undrafted: why nothing was drafted.
    measuring_s: seconds spent measuring what passes cost. rounding: which passes agree bit for bit, if known. machine:
    such as threads and context, for `-v`.
    """

    metrics: Metrics
    settings: RecordedSettings
    notes: Sequence[str] = ()
    baseline: BaselineResult | None = None
    unmeasured: str = ""
    undrafted: str = ""
    load_s: float | None = None
    measuring_s: float = 0.0
    memory: Sequence[ModelMemory] = ()
    rounding: str = ""
    machine: Sequence[str] = ()

    @classmethod
    def of_recording(
        cls, metrics: Metrics, settings: RecordedSettings, notes: Sequence[str] | None = None
    ) -> RunRecord:
        """With the baseline that a run without `--baseline` has: the steps in which `-k auto` drafted nothing. notes:
        by default, the recorded ones.
        """
        baseline = BaselineResult.probed(metrics) if settings.draft_tokens == AUTO else None
        return cls(metrics, settings, notes=metrics.notes if notes is None else notes, baseline=baseline)


def run_report(run: RunRecord) -> RenderableType:
    """Notes, the headline, the bars if there are any, what was drafted, how it ended. The settings come last, and only
    if there is room.
    """
    metrics, settings = run.metrics, run.settings
    notes, ended, kept = note_lines(run.notes), _ended(metrics), _kept(metrics)
    headlines = dict.fromkeys((_headline(run), _shortened(_headline(run), run)))
    shown = [[line for line in (headline, kept) if line] for headline in headlines]
    described = [
        "; ".join(filter(None, (ended, line))) for line in (settings_line(settings), _without_models(settings))
    ]
    seed = [f"seed {settings.seed}"] if settings.temperature and settings.seed is not None else []
    briefly = ", ".join([ended, *seed, *_adapters(settings)])
    layouts = [[*lines, line] for lines in shown for line in described]
    layouts += [[*lines[:-1], f"{lines[-1]}; {briefly}"] for lines in shown if lines]
    most = _MAX_LINES if metrics.drafted else _MAX_IDLE_LINES
    return Group(*notes, _FirstThatFits(layouts, most - len(notes), _speeds(run)))


@dataclass(frozen=True, slots=True)
class _FirstThatFits:
    """The first of several layouts of lines that takes at most so many rows; else the last. bars: below the first
    line.
    """

    layouts: Sequence[Sequence[str]]
    most: int
    bars: Sequence[Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for lines in self.layouts:
            first, *rest = texts = [Text(line, "" if i else "bold") for i, line in enumerate(lines)]
            if sum(len(text.wrap(console, options.max_width)) for text in texts) <= self.most:
                break
        yield from (first, *self.bars, *rest)


def _shortened(line: str, run: RunRecord) -> str:
    """A headline in fewer words, for narrow terminals."""
    for words, fewer in (
        (f" ({run.undrafted})", ""),
        ("the target alone", "alone"),
        (" tokens/s with drafts", " tokens/s"),
    ):
        line = line.replace(words, fewer)
    return line


def _without_models(settings: RecordedSettings) -> str:
    """The drafter's name and the settings, but not the names of files."""
    drafter = "" if settings.drafter == "none" else settings.drafter
    return ", ".join(filter(None, (drafter, settings_line(replace(settings, target="")))))


def run_details(run: RunRecord) -> RenderableType:
    """What `-v` adds."""
    metrics, baseline = run.metrics, run.baseline
    lines = {"settings": settings_line(run.settings, run.machine)}
    lines["text"] = str(baseline.divergence or "") if baseline else ""
    if metrics.drafted:
        lines["acceptance"] = f"{metrics.acceptance_rate:.1%} of {metrics.drafted:,} drafted tokens"
        rates = [f"{i}:{spark([rate], 1)} {rate:.0%}" for i, rate in enumerate(metrics.per_position[:8], 1)]
        lines["by position"] = "  ".join(rates) + ("  \u2026" if len(metrics.per_position) > 8 else "")
    if len(metrics.sources) > 1:
        sources = ((name, drafted, kept) for name, (drafted, kept) in metrics.sources.items() if drafted)
        lines["by drafter"] = ", ".join(f"{name} {kept / drafted:.0%} of {drafted}" for name, drafted, kept in sources)
    if metrics.lengths[1:]:
        lines["lengths"] = _lengths(metrics.lengths)
        lines["each length"] = "  ".join(f"{n}: {count}x" for n, count in enumerate(metrics.lengths) if count)
    if metrics.forced:
        lines["forced"] = f"{metrics.forced:,} of {metrics.emitted:,} tokens took no pass: the grammar left no other"
    if metrics.steps:
        passes = counted(metrics.steps, "forward pass", "forward passes")
        lines["steps"] = f"{passes} of the target, {metrics.tokens_per_step:.2f} tokens/step"
    if metrics.tokens_per_s:
        lines["speed"] = f"{metrics.tokens_per_s:,.1f} tokens/s, {duration(1 / metrics.tokens_per_s)} a token"
    lines["times"] = _times(run)
    if metrics.decode_s:
        parts = (metrics.draft_s, metrics.verify_s, metrics.sample_s, metrics.overhead_s)
        names = zip(("draft", "verify", "sample", "other"), parts, strict=True)
        shares = "  ".join(f"{name} {seconds / metrics.decode_s:.0%}" for name, seconds in names)
        lines["decoding"] = f"{duration(metrics.decode_s)}:  {shares}"
    read = f"{counted(metrics.prompt_tokens, 'token')} in {duration(metrics.prefill_s)}"
    lines["prompt"] = read if metrics.prompt_tokens else "not read to its end"
    lines["memory"] = _memory(run.memory) if run.memory else ""
    lines["rounding"] = run.rounding
    if run.undrafted:
        lines["advice"] = "specdec tune --what-if rtx-4090 predicts what drafts gain on another machine"
    return Group(Text(), lines_table(lines))


def _headline(run: RunRecord) -> str:
    """The speedup, if there is one to claim, and whether the text is the target's own."""
    metrics, baseline = run.metrics, run.baseline
    speed = f"{metrics.tokens_per_s:,.1f} tokens/s" if metrics.tokens_per_s and not _speeds(run) else ""
    if not metrics.drafted:
        why = f" ({run.undrafted})" if run.undrafted else ""
        what = "the target alone" if run.settings.drafter == "none" else f"nothing was drafted{why}"
        what = what if metrics.steps else ""
    elif baseline is not None and (why := _undecided(baseline)):
        what, drafted, alone = why, baseline.drafted_tokens_per_s, baseline.tokens_per_s
        if drafted and alone:
            speed, what = "", f"{drafted:,.1f} tokens/s with drafts, {alone:,.1f} alone: {why}"
    elif baseline is not None:
        what = _claim(baseline)
    else:
        what = f"speedup {run.unmeasured}" if run.unmeasured else ""
    return ", ".join(filter(None, (speed, what, _sameness(metrics, baseline))))


def _undecided(baseline: BaselineResult) -> str:
    """Why the measurement doesn't show which is faster; empty if it does."""
    speedup = baseline.speedup
    difference = speedup.difference if speedup else "too few prompts"
    if speedup and difference == "inconclusive" and speedup.count < _ENOUGH_PARTS:
        difference = "too few prompts"
    return _UNDECIDED.get(difference, "")


def _claim(baseline: BaselineResult) -> str:
    """What a measurement shows that isn't undecided: a ratio if its interval excludes 1. For answers with drafts."""
    speedup = baseline.speedup
    if speedup and speedup.difference == "faster":
        return f"{speedup.mean:.2f}x as fast as the target alone ({speedup.span})"
    if speedup and speedup.difference == "slower":
        return f"slower than the target alone: {speedup}"
    return "as fast as the target alone"


def _sameness(metrics: Metrics, baseline: BaselineResult | None) -> str:
    """How the text compares with the target's own, in a few words."""
    if metrics.distance_per_token is not None:
        distance = f"each token off by {metrics.distance_per_token:.3f}, total variation"
        return f"LOSSY: not the target's distribution ({distance})"
    if baseline is None or baseline.probes:
        return ""
    if baseline.identical is None:
        return "same distribution"
    if baseline.differs_at is None:
        return "same text"
    where = f"from token {baseline.differs_at + 1}"
    if baseline.divergence is None:
        return f"the texts differ {where}"
    bug = baseline.divergence.bug
    return f"WRONG {where} on: this is a bug in specdec" if bug else f"the texts differ {where} (proved to be rounding)"


def _speeds(run: RunRecord) -> list[Text]:
    """Both speeds as bars, if the headline shows their ratio."""
    if not (run.metrics.drafted and (baseline := run.baseline) and baseline.claim):
        return []
    drafted, alone = baseline.drafted_tokens_per_s, baseline.tokens_per_s
    if not (drafted and alone):
        return []
    most = max(drafted, alone)
    speeds = {"with drafts": drafted, "alone": alone}
    return [Text(f"  {name:<11} {speed:>7,.1f} tokens/s {bar(speed / most, 20)}") for name, speed in speeds.items()]


def _kept(metrics: Metrics) -> str:
    if not metrics.drafted:
        return ""
    rate = f"{metrics.accepted:,} of {metrics.drafted:,} draft tokens kept ({metrics.acceptance_rate:.0%})"
    return f"{rate}, {metrics.tokens_per_step:.1f} tokens/step"


def _ended(metrics: Metrics) -> str:
    if metrics.reason == "length":
        return f"{_REASONS[metrics.reason]} {metrics.emitted}"
    return f"{_REASONS[metrics.reason]} after {counted(metrics.emitted, 'token')}"


def _lengths(counts: Sequence[int]) -> str:
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
    shown = []
    for model in models:
        weights, cache, buffers = map(format_bytes, (model.weights, model.cache, model.buffers))
        copies = f" + repacked {format_bytes(model.repacked)}" if model.repacked else ""
        shown.append(f"{model.name} {weights}{copies} + cache {cache} + buffers {buffers}")
    return f"{format_bytes(sum(model.total for model in models))}: {'; '.join(shown)}"


def settings_line(settings: RecordedSettings, more: Sequence[str] = ()) -> str:
    """Models, drafter and its options, sampling; then `more`. It leaves out what a recording lacks."""
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
    return ", ".join([*parts, *_adapters(settings), *more])


def _adapters(settings: RecordedSettings) -> list[str]:
    return [f"{name.replace('_', '-')}={files}" for name, files in settings.adapters.items() if files]


def _models(settings: RecordedSettings, drafter: str) -> str:
    """The target and its drafters, by their files if they have any."""
    target, draft, small = (Path(each or "").name for each in (settings.target, settings.draft, settings.draft_small))
    known = {"model": draft or "model", "self": f"self ({draft})" if draft else "self", "small": small or "small"}
    names = [target]
    for part in [] if drafter in ("", "none") else drafter.split("+"):
        outer, slower, inner = "<".join(reversed(part.split(">"))).partition("<")
        names.append(known.get(outer, outer) + slower + known.get(inner, inner))
    return " + ".join(names)


def turn_line(metrics: Metrics, baseline: BaselineResult | None) -> Text:
    """The line under an answer in a chat. baseline: from steps without drafts, if there were enough of them."""
    parts = [f"{metrics.tokens_per_s:,.1f} tokens/s"] if metrics.tokens_per_s else []
    if metrics.drafted:
        parts += [_claim(baseline)] if baseline and baseline.claim else []
        parts.append(f"{metrics.acceptance_rate:.0%} of {metrics.drafted:,} draft tokens kept")
    else:
        parts.append("nothing was drafted")
    parts += [_REASONS[metrics.reason]] if metrics.reason != "stop" else []
    return Text(", ".join(parts))


def alone_line(metrics: Metrics, found: BaselineResult) -> Text:
    """How an answer compares with the target's own. One answer of each gives no interval, so there is no ratio.

    metrics: of the answer with drafts.
    """
    if found.identical:
        if not metrics.drafted:
            return Text("same text, token for token; nothing was drafted")
        drafted, alone, speeds = metrics.tokens_per_s, found.tokens_per_s, ""
        if drafted and alone:
            speeds = f"; {drafted:,.1f} tokens/s with drafts, {alone:,.1f} alone (one answer each)"
        return Text(f"same text, token for token{speeds}")
    if found.differs_at is None:
        return Text("sampled again: this acceptance rule keeps the distribution, not the text")
    why = str(found.divergence or "cause unknown: the passes of the first answer can't be repeated (try /regen)")
    return Text(f"the texts differ from token {found.differs_at + 1}: {why}")
