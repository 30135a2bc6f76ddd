"""`specdec run`: one answer, and a report under it."""

from __future__ import annotations

import secrets
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.loading import loaded
from specdec_cli.cli.output import print_json, print_run_report, show_answer, writing
from specdec_cli.cli.prompt_input import asked_grammar, asked_prediction, gather, read_file, unescaped
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import status_line

if TYPE_CHECKING:
    from specdec_cli.engine.generation_result import GenerationResult
    from specdec_cli.measure.traces import TraceFile
    from specdec_cli.settings.settings import Settings

_constraint = partial(typer.Option, hidden=True, rich_help_panel="Constraints")


@opt.takes(*opt.ALL)
def run(
    given: opt.Given,
    prompt: Annotated[str | None, typer.Argument(help="The prompt. Piped text is added to it.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    raw: opt.Raw = False,
    system: opt.System = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(hidden=True, help=r"Stop at this string; \n, \t and \\ are escapes; may be repeated."),
    ] = None,
    json_schema: Annotated[
        str | None,
        _constraint(help="Constrain the answer to a JSON schema, in a file or as text.", metavar="FILE|TEXT"),
    ] = None,
    grammar: Annotated[
        Path | None, _constraint("--grammar", help="Constrain the answer to a grammar in GBNF or Lark.")
    ] = None,
    regex: Annotated[str | None, _constraint(help="Constrain the answer to a regular expression.")] = None,
    prediction: opt.Prediction = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also run the target alone and compare.")] = False,
    json_: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
    verbose: opt.Verbose = False,
    trace: Annotated[
        Path | None, typer.Option(hidden=True, help="Record the prompt and the run to this file, as JSON lines.")
    ] = None,
) -> None:
    _begin_trials(given)

    from specdec_cli.decoding.rules import REPRODUCIBLE
    from specdec_cli.settings.options import SamplingParams, SpeculativeConfig
    from specdec_cli.settings.settings import require_stops
    from specdec_cli.weights.model_pair import check_pair

    sampling = SamplingParams(
        stop=tuple(map(unescaped, stop or ())), grammar=asked_grammar(json_schema, grammar, regex)
    )
    settings = given.settings()
    if settings.seed is None and settings.accept in REPRODUCIBLE:  # the report and the trace show it
        settings = replace(settings, seed=secrets.randbits(32))
    text = gather(prompt, file)
    if text is None:
        print(given.help())
        raise typer.Exit(2)
    speculative = SpeculativeConfig(prediction=_predicted(settings, prediction, prompt, file))
    _require_consistent(baseline, quiet, verbose)
    require_stops(sampling.stop)
    pair = check_pair(settings)
    # These imports take long. Meanwhile a child process tries files that are new.
    from specdec_cli.engine.session import to_json

    silent = quiet or json_
    record = _open_trace(trace, settings, text) if trace else None
    with (
        closing(record) if record else nullcontext(),
        interruptible() as interrupt,
        loaded(settings, pair, interrupt, silent) as engine,
    ):
        session = engine.session()
        answer = session.start(text, sampling, speculative, system=system, raw=raw)
        error = show_answer(session, answer, record, not json_, quiet)
        if baseline and answer.result.complete:
            with status_line("measuring the target alone", silent):
                answer.measure_baseline()
        if json_:
            print_json(to_json(answer.result, session))
        elif not quiet:
            print_run_report(session, answer, verbose)
        _require_whole(answer.result, record, error)
    raise typer.Exit(interrupt.exit_code)


def _predicted(settings: Settings, prediction: str | None, prompt: str | None, file: Path | None) -> str | None:
    """What the answer may repeat: a prediction, or the file that the prompt is about."""
    if prediction is None and prompt and file and file.is_file() and settings.cascade.reads_texts:
        return read_file(file)
    return asked_prediction(prediction, settings)


def _begin_trials(given: opt.Given) -> None:
    """Begin to try new files in a child process, in parallel with the imports: both take half a second."""
    from specdec_cli.weights.model_loading import begin_trial

    for name in ("target", "draft"):
        if str(given.flags[name]).endswith(".gguf"):
            begin_trial(Path(given.flags[name]))


def _require_consistent(baseline: bool, quiet: bool, verbose: bool) -> None:
    for option, given in (("--baseline", baseline), ("--verbose", verbose)):
        if given and quiet:
            raise UsageError(f"{option} has nowhere to report with -q", "Leave one of them out.")


def _open_trace(path: Path, settings: Settings, prompt: str) -> TraceFile:
    from specdec_cli.measure.traces import TraceFile

    models = {name: getattr(settings, name) for name in ("target", "draft", "draft_small")}
    with writing(path):
        return TraceFile(path, {**models, **settings.recorded(), "prompt": prompt})


def _require_whole(result: GenerationResult, trace: TraceFile | None, error: Exception | None) -> None:
    """Raise the error that ended the answer, or an error if the answer or its recording is wrong."""
    if isinstance(error, SpecdecError):
        raise error
    if result.baseline:
        result.baseline.require_own()
    if trace:
        trace.close()
        if trace.problem:
            why = trace.problem.strerror
            raise SpecdecError(f"the trace is not written whole: {why}", "Free some space, or write it elsewhere.")
