"""`specdec run`: one prompt, drafted, verified and shown, with a report under it."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.errors import close_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_cli.cli.session import Pair, Session
    from specdec_cli.cli.settings import Settings
    from specdec_cli.decoding.report import Report
    from specdec_cli.decoding.types import Event
    from specdec_cli.display.jsonl import Trace
    from specdec_cli.display.tables import BaselineResult


def run(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; joined with what is piped in.")] = None,
    target: opt.Target = None,
    draft: opt.Draft = None,
    profile: opt.Profile = None,
    file: opt.PromptFile = None,
    max_tokens: opt.MaxTokens = None,
    raw: opt.Raw = False,
    system: opt.System = None,
    stop: opt.Stop = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also run the target alone, and compare speed and text.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Record the run to this file, as JSON lines.")] = None,
    draft_tokens: opt.DraftTokens = None,
    draft_min_p: opt.DraftMinP = None,
    drafter: opt.Drafter = None,
    accept: opt.Accept = None,
    temp: opt.Temp = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repeat_penalty: opt.RepeatPenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    repeat_last_n: opt.RepeatLastN = None,
    seed: opt.Seed = None,
    ctx_size: opt.Ctx = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    gpu_layers_draft: opt.GpuLayersDraft = None,
) -> None:
    """Answer one prompt: the draft model proposes, the target model decides."""
    from specdec_cli.cli import prompt as prompts
    from specdec_cli.cli.settings import resolve

    flags = {
        "target": target,
        "draft": draft,
        "drafter": drafter,
        "accept": accept,
        "draft_tokens": draft_tokens,
        "draft_min_p": draft_min_p,
        "max_tokens": max_tokens,
        "temp": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repeat_last_n": repeat_last_n,
        "seed": seed,
        "ctx": ctx_size,
        "threads": threads,
        "gpu_layers": gpu_layers,
        "gpu_layers_draft": gpu_layers_draft,
    }
    settings = resolve(profile, flags)
    text = prompts.gather(prompt, file)
    if text is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)
    request = _Request(text, raw, system, tuple(stop or ()), baseline, json_, quiet, trace)
    raise typer.Exit(_execute(settings, request))


@dataclass(frozen=True, slots=True)
class _Request:
    """What this one call asks for, besides the settings."""

    prompt: str
    raw: bool
    system: str | None
    stop: tuple[str, ...]
    baseline: bool
    json: bool
    quiet: bool
    trace: Path | None


class _Display(Protocol):
    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


def _execute(settings: Settings, request: _Request) -> int:
    """Check, load, run, report. Returns the exit code."""
    from rich.console import Console

    from specdec_cli.cli.session import Session, check_pair, validate
    from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
    from specdec_cli.llama.interrupt import Interrupt

    if "" in request.stop:
        raise UsageError("a stop string cannot be empty", "Leave --stop out, or name the text to stop at.")
    validate(settings)
    pair = check_pair(settings)
    with Interrupt() as interrupt, ExitStack() as stack:
        trace = stack.enter_context(closing(_open_trace(request.trace, settings))) if request.trace else None
        try:
            with _loading(pair, silent=request.quiet or request.json):
                session = stack.enter_context(Session(pair, settings, interrupt))
            outcome = _answer(session, request, trace)
        except Interrupted:  # before there was anything to keep
            print("specdec: interrupted", file=sys.stderr)
            return interrupt.exit_code
        if request.baseline and not interrupt.is_set():
            outcome.baseline = _measure_baseline(session, outcome)
        if request.json:
            print(json.dumps(outcome.to_json(session)), flush=True)
        elif not request.quiet:
            _print_report(Console(stderr=True, highlight=False), session, outcome)
        if trace:
            trace.close()
            if trace.problem:
                why = trace.problem.strerror
                raise SpecdecError(f"the trace is incomplete: {why}", "Free some space, or write it elsewhere.")
        return interrupt.exit_code


@contextmanager
def _loading(pair: Pair, silent: bool) -> Iterator[None]:
    """Say on a terminal what is being loaded, and take it back afterwards."""
    shown = not silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if shown:
        names = [path.name for path in (pair.target_path, pair.draft_path) if path]
        print(f"loading {' + '.join(names)} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _open_trace(path: Path, settings: Settings) -> Trace:
    """Begin the record of a run; raises UsageError if the file cannot be made."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.display.jsonl import Trace

    try:
        out = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None
    return Trace(out, {"target": settings.target, "draft": settings.draft, "max_tokens": settings.max_tokens})


class _Outcome:
    """What a run gave: the answer, its events' report, and the baseline if one was measured."""

    def __init__(self, seed: int, prompt: list[int], stop: tuple[str, ...], notes: tuple[str, ...]) -> None:
        from specdec_cli.decoding.report import Report

        self.seed = seed
        self.prompt = prompt
        self.stop = stop
        self.notes = notes
        self.live = False
        self.report: Report = Report()
        self.text = ""
        self.baseline: BaselineResult | None = None

    def add(self, event: Event) -> None:
        """Fold an event in."""
        from specdec_cli.decoding.types import Done, Step

        self.report.add(event)
        if isinstance(event, Step):
            self.text += "".join([token.text for token in event.tokens])
        elif isinstance(event, Done):
            self.text += event.tail

    def to_json(self, session: Session) -> dict[str, Any]:
        """The object that `--json` prints; scripts rely on its keys."""
        from specdec_cli.display.tables import speedup_of

        report, settings, baseline = self.report, session.settings, self.baseline
        return {
            "text": self.text,
            "tokens": report.tokens,
            "finish_reason": report.reason,
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.emitted,
            "target": str(session.pair.target_path),
            "draft": str(session.pair.draft_path) if session.pair.draft_path else None,
            "drafter": settings.drafter,
            "accept": settings.accept,
            "draft_tokens": settings.draft_tokens,
            "seed": self.seed,
            "stats": report.stats_json(),
            "timing": report.timing_json(session.load_s),
            "baseline": baseline.to_json() if baseline else None,
            "speedup": speedup_of(report, baseline),
            "notes": [*self.notes, *report.notes],
        }


def _answer(session: Session, request: _Request, trace: Trace | None) -> _Outcome:
    """Run the prompt and show it; a reader that goes away ends the answer, and nothing more."""
    from specdec_cli.cli import prompt as prompts
    from specdec_cli.display.live import LiveDisplay

    tokens, notes = prompts.tokenize(request.prompt, request.system, request.raw, session.target, session.pair.target)
    session.open_contexts(len(tokens))
    seed = session.settings.seed if session.settings.seed is not None else secrets.randbits(32)
    outcome = _Outcome(seed, tokens, request.stop, (*session.pair.notes, *notes, *session.notes))
    display = _display(session, request)
    displays: list[_Display] = [part for part in (display, trace) if part is not None]
    outcome.live = isinstance(display, LiveDisplay)
    try:
        for event in session.events(tokens, seed, request.stop):
            outcome.add(event)
            for part in displays:
                part.show(event)
    except BrokenPipeError:
        close_stdout()
    finally:
        if display is not None:
            display.close()
    return outcome


def _display(session: Session, request: _Request) -> _Display | None:
    """Where the answer is shown: on the screen as it comes, or as plain text; nowhere if JSON is wanted."""
    from rich.console import Console

    from specdec_cli.display.live import LiveDisplay
    from specdec_cli.display.plain import PlainDisplay

    if request.json:
        return None
    console = Console(highlight=False)
    on_terminal = sys.stdout.isatty()
    if on_terminal and not console.is_dumb_terminal and not request.quiet:
        return LiveDisplay(console, session.settings.max_tokens)
    coloured = bool(os.environ.get("FORCE_COLOR")) and not console.no_color and not request.quiet
    return PlainDisplay(sys.stdout, neutralise=on_terminal, coloured=coloured)


def _measure_baseline(session: Session, outcome: _Outcome) -> BaselineResult | None:
    """Run the target alone on the same prompt with the same seed; None if the user had enough of waiting."""
    from specdec_cli.decoding.comparison import first_difference
    from specdec_cli.decoding.report import Report
    from specdec_cli.display.tables import BaselineResult

    report = Report.of(session.events(outcome.prompt, outcome.seed, outcome.stop, session.settings.alone()))
    if report.reason == "interrupted":
        return None
    if session.settings.temp > 0 and session.settings.accept != "match":
        return BaselineResult(report.tokens_per_s, None)
    position = first_difference(outcome.report.tokens, report.tokens)
    if position is None:
        return BaselineResult(report.tokens_per_s, True)
    margin = session.margin_after([*outcome.prompt, *report.tokens[:position]])
    return BaselineResult(report.tokens_per_s, False, (position, margin))


def _print_report(err: Console, session: Session, outcome: _Outcome) -> None:
    """The report, on stderr, with a legend where colours were shown."""
    from specdec_cli.display import tables

    for note in outcome.notes:
        err.print(f"note: {note}", style="yellow", markup=False)
    if outcome.live and outcome.report.drafted:
        err.print(tables.legend())
    err.print(tables.run_report(outcome.report, session.describe(), session.memory(), outcome.baseline, session.load_s))
