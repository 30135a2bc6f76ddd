"""`specdec run`: one prompt, drafted, verified and shown, with a report under it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import close_stdout
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.display.status_line import working

if TYPE_CHECKING:
    from specdec_cli.decoding.types import Event
    from specdec_cli.engine.generation_result import Outcome
    from specdec_cli.engine.session import Session
    from specdec_cli.engine.settings import Settings
    from specdec_cli.models.corpus_files import Source
    from specdec_cli.store.traces import TraceWriter


def run(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; joined with what is piped in.")] = None,
    target: opt.Target = None,
    draft: opt.Draft = None,
    draft_small: opt.DraftSmall = None,
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
    tree: opt.Tree = None,
    lookahead: opt.Lookahead = None,
    drafter: opt.Drafter = None,
    ngram_corpus: opt.NgramCorpus = None,
    accept: opt.Accept = None,
    bitwise: opt.Bitwise = None,
    temp: opt.Temp = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repeat_penalty: opt.RepeatPenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    repeat_last_n: opt.RepeatLastN = None,
    seed: opt.Seed = None,
    ctx: opt.Ctx = None,
    threads: opt.Threads = None,
    threads_draft: opt.ThreadsDraft = None,
    gpu_layers: opt.GpuLayers = None,
    gpu_layers_draft: opt.GpuLayersDraft = None,
) -> None:
    """Answer one prompt: the draft model proposes, the target model decides."""
    import secrets

    from specdec_cli.engine import corpus
    from specdec_cli.engine import prompt as prompts
    from specdec_cli.engine.settings import resolve

    settings = resolve(*opt.given(context))
    if settings.seed is None:  # drawn here, so that the trace and the report name it
        settings = replace(settings, seed=secrets.randbits(32))
    text = prompts.gather(prompt, file)
    if text is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    opt.require_used(context, [settings.drafter])
    sources = corpus.sources_of(settings, [settings.drafter])
    request = _Request(text, raw, system, tuple(stop or ()), baseline, json_, quiet, trace, sources)
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
    corpus: list[Source]


class _Display(Protocol):
    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


def _execute(settings: Settings, request: _Request) -> int:
    """Check, load, run, report. Returns the exit code. Whatever fails, what was generated until then is kept."""
    from specdec_cli.decoding.errors import SpecdecError, UsageError
    from specdec_cli.engine.corpus import open_corpus
    from specdec_cli.engine.generation_result import measure_baseline, probed_baseline
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.session import Session
    from specdec_cli.engine.settings import AUTO
    from specdec_cli.engine.validation import validate
    from specdec_cli.llama.interrupt import Interrupt

    if "" in request.stop:
        raise UsageError("a stop string cannot be empty", "Leave --stop out, or name the text to stop at.")
    if request.baseline and request.quiet:
        raise UsageError("--baseline has nowhere to report with -q", "Leave one of them out.")
    validate(settings)
    pair = check_pair(settings)
    silent = request.quiet or request.json
    with Interrupt() as interrupt, ExitStack() as stack:
        trace = stack.enter_context(closing(_open_trace(request.trace, settings))) if request.trace else None
        try:
            names = [path.name for path in (pair.target_path, pair.draft_path) if path]
            with working(f"loading {' + '.join(names)}", silent):
                session = stack.enter_context(Session(pair, settings, interrupt))
            open_corpus(session, request.corpus, interrupt, silent)
            outcome = _answer(session, request, trace)
        except Interrupted:  # before there was anything to keep
            print("specdec: interrupted", file=sys.stderr)
            return interrupt.exit_code
        if settings.draft_tokens == AUTO and settings.drafter != "none" and session.drafts:
            probed_baseline(outcome)
        if request.baseline and outcome.complete:
            with working("measuring the target alone", silent):
                measure_baseline(session, outcome)
        if request.json:
            print(json.dumps(outcome.to_json(session)), flush=True)
        elif not request.quiet:
            _print_report(session, outcome)
        if outcome.error:
            raise outcome.error
        if outcome.baseline and outcome.baseline.divergence and outcome.baseline.divergence.bug:
            raise SpecdecError(
                f"the answer is not the target's own: {outcome.baseline.divergence.bug}",
                "This is a bug in specdec: please report it with the output of --json and the model's name.",
            )
        if trace:
            trace.close()
            if trace.problem:
                why = trace.problem.strerror
                raise SpecdecError(f"the trace is incomplete: {why}", "Free some space, or write it elsewhere.")
        return interrupt.exit_code


def _open_trace(path: Path, settings: Settings) -> TraceWriter:
    """Begin the record of a run; raises UsageError if the file cannot be made."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.engine.settings import SHAPING
    from specdec_cli.store.traces import TraceWriter

    try:
        out = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None
    return TraceWriter(out, {name: getattr(settings, name) for name in ("target", "draft", "draft_small", *SHAPING)})


def _answer(session: Session, request: _Request, trace: TraceWriter | None) -> Outcome:
    """Run the prompt and show it. A reader that goes away ends the answer; a target that fails is told at the end."""
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.display.choice import on_stdout
    from specdec_cli.display.live import LiveDisplay
    from specdec_cli.display.reading import StderrBar
    from specdec_cli.engine import prompt as prompts
    from specdec_cli.engine.generation_result import Outcome, crowded

    tokens, notes = prompts.tokenize(request.prompt, request.system, request.raw, session.target, session.pair.target)
    session.open_contexts(len(tokens))
    with working("finding out which passes round alike", request.quiet or request.json or not session.settings.bitwise):
        session.agree(tokens)
    seed = session.settings.seed or 0
    display = None if request.json else on_stdout(session.settings.max_tokens, request.quiet)
    live = isinstance(display, LiveDisplay)
    outcome = Outcome(seed, tokens, request.stop, (*session.pair.notes, *notes, *session.notes), live)
    known = session.notes
    shown: list[_Display] = [part for part in (trace, display) if part is not None]
    if not (request.json or request.quiet):
        session.show_reading((display if isinstance(display, LiveDisplay) else StderrBar()).reading)
    try:
        try:
            for event in session.events(tokens, seed, request.stop):
                outcome.add(event)
                for part in shown:
                    part.show(event)
        except SpecdecError as error:
            outcome.error = error
        session.show_reading(None)  # what else is read is not the prompt of this answer
        outcome.threads = session.thread_log
        session.keep_costs()
        outcome.notes += session.notes[len(known) :] + crowded(outcome, session)
        if display is not None:
            display.close()
    except BrokenPipeError:
        close_stdout()
    return outcome


def _print_report(session: Session, outcome: Outcome) -> None:
    """The report, on stderr, with a legend where colours were shown."""
    from rich.console import Console

    from specdec_cli.display import run_report as tables
    from specdec_cli.engine.about import describe, memory_of

    err = Console(stderr=True, highlight=False)
    if outcome.live and outcome.report.drafted:
        err.print(tables.legend())
    outcome.report.notes = (*outcome.notes, *outcome.report.notes)
    err.print(
        tables.run_report(
            outcome.report,
            describe(session),
            memory_of(session),
            outcome.baseline,
            session.load_s,
            outcome.unmeasured,
            session.measured_s,
            str(session.agreement or ""),
        )
    )
