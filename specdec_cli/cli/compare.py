"""`specdec compare`: an A/B measurement of ways to decode, on this machine, with these models and texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.display.status_line import status_line

if TYPE_CHECKING:
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.engine.comparison_run import Measurement
    from specdec_cli.engine.config import Settings
    from specdec_cli.engine.model_pair import Pair
    from specdec_cli.models.corpus_files import Source
    from specdec_cli.models.suites import Prompt

_OUTPUT = "Output"


@opt.takes(*opt.ALL)
def compare(
    given: opt.Given,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, a suite is used.")] = None,
    vs: Annotated[list[str] | None, typer.Option(help='Add an arm: "k=8", "k=8,temp=0.8"; may be repeated.')] = None,
    sweep: Annotated[list[str] | None, typer.Option(help='Make an arm of each value: "k=1,2,4,8".')] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="A suite (chat, code, creative, edit, python, reasoning, structured, summarisation, translation) or a file of prompts (text, JSONL, YAML).",
            autocompletion=completion.prompts,
        ),
    ] = None,
    category: Annotated[list[str] | None, typer.Option(help="Only this category; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many prompts.")] = None,
    per_category: Annotated[int | None, typer.Option(help="At most this many prompts of each category.")] = None,
    repeat: Annotated[int, typer.Option(help="Rounds per prompt, in alternating order.")] = 2,
    raw: opt.Raw = False,
    system: opt.System = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print all data as one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
    md: Annotated[
        bool, typer.Option("--md", help="Print Markdown, to paste into an issue.", rich_help_panel=_OUTPUT)
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with charts to this file.", rich_help_panel=_OUTPUT)
    ] = None,
    save: Annotated[str | None, typer.Option(help="Keep the result under this name.", rich_help_panel=_OUTPUT)] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with a kept result: its name, or a JSON file.",
            autocompletion=completion.results,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the kept results.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Measure ways to decode against the target alone: speed with intervals, exactness, causes."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.engine import corpus
    from specdec_cli.engine.comparison_run import Measurement
    from specdec_cli.engine.config_layers import resolve
    from specdec_cli.engine.variants import make_arms
    from specdec_cli.store import comparisons as results

    if list_:
        found = [{"name": name, "when": f"{when:%Y-%m-%d %H:%M}"} for name, when in results.kept()]
        typer.echo(json.dumps(found) if json_ else "\n".join(f"{one['name']}  {one['when']}" for one in found))
        raise typer.Exit
    named, flags = opt.given(context)
    settings = resolve(named, flags)
    if repeat < 1:
        raise UsageError(f"repeat cannot be {repeat}", "Give 1 or more; with 1 the machine's noise stays unknown.")
    if json_ and md:
        raise UsageError("--json and --md both want the output", "Choose one.")
    if against and (json_ or md):
        raise UsageError("--against is a table on the screen", "Leave out --json and --md; the kept result is JSON.")
    arms = make_arms(settings, vs or (), sweep or (), draft_named=flags["draft"] is not None)
    used = [arm.settings.drafter for arm in arms]
    opt.require_used(context, used)
    sources = corpus.sources_of(settings, used)
    chosen = _prompts(prompt or [], prompts, settings, category or (), limit, per_category)
    writers: list[Callable[[dict[str, Any]], None]] = []
    if save:
        results.path_of(save)
        writers.append(lambda result: results.store(save, result))
    if html:
        from specdec_cli.display import comparison_html

        comparison_html.require()
        results.require_writable(html)
        writers.append(lambda result: results.write(html, comparison_html.page(result)))
    before = results.load(against) if against else None
    _compare(
        Measurement(settings, arms, repeat),
        chosen,
        sources,
        (system, raw),
        lambda result: _show(result, before, json_, md),
        writers,
        silent=json_ or md,
    )


def _compare(
    measurement: Measurement,
    prompts: list[Prompt],
    sources: list[Source],
    template: tuple[str | None, bool],
    show: Callable[[dict[str, Any]], None],
    writers: list[Callable[[dict[str, Any]], None]],
    silent: bool,
) -> None:
    """Load the models once, measure, and put out whatever was measured, also after an interrupt or a failure."""
    from specdec_cli.decoding.errors import Interrupted, SpecdecError
    from specdec_cli.display.comparison_tables import Progress
    from specdec_cli.engine.corpus import open_corpus
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.session import Session
    from specdec_cli.llama.interrupt import Interrupt

    pair = check_pair(measurement.loaded)
    with Interrupt() as interrupt, ExitStack() as stack:
        try:
            with status_line("loading", silent):
                session = stack.enter_context(Session(pair, measurement.loaded, interrupt))
            open_corpus(session, sources, interrupt, silent)
            with Progress(sys.stderr) as progress:
                measurement.run(session, prompts, *template, interrupt, progress.update)
        except Interrupted:
            measurement.exit_code = interrupt.exit_code
        if not measurement.trials:
            print("specdec: interrupted before anything was measured", file=sys.stderr)
            raise typer.Exit(measurement.exit_code)
        result = measurement.to_json()
        show(result)
        _remember(pair, result)
        problems = [measurement.error] if measurement.error else []
        for write in writers:
            try:
                write(result)
            except SpecdecError as error:
                problems.append(error)
    _finish(measurement, result, problems)


def _remember(pair: Pair, result: dict[str, Any]) -> None:
    """Keep the best arm's speedup for `specdec ls`, with its bounds; of too few prompts for bounds, nothing."""
    from specdec_cli.store import speeds

    overall = [arm for arm in result["summaries"] if arm["category"] == "all" and arm["speedup"]]
    found = [arm for arm in overall if arm["speedup"]["low"] is not None]
    if pair.draft_path is None or not found or result["partial"]:
        return
    best = max(found, key=lambda summary: summary["speedup"]["mean"])
    figures = best["speedup"]
    speeds.keep(
        pair.target_path,
        pair.draft_path,
        speeds.Speed(figures["mean"], figures["low"], figures["high"], best["arm"], date.today().isoformat()),
    )


def _prompts(
    given: list[str], suite: str | None, settings: Settings, categories: Any, limit: int | None, each: int | None
) -> list[Prompt]:
    """The prompts to compare on: those given, else a suite; the bundled pair completes Python."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.engine import prompt as prompt_text
    from specdec_cli.models import profiles, suites
    from specdec_cli.models.user_files import bundled_dir

    if given and suite:
        raise UsageError("prompts were given and a suite too", "Give prompts, or --prompts.")
    if not given and not suite and (piped := prompt_text.gather(None, None)):
        given = [piped]
    if given:
        if not all(text.strip() for text in given):
            raise UsageError("a prompt is empty", 'Give texts: specdec compare "def median(values):"')
        found = [suites.Prompt(str(i), "given", text) for i, text in enumerate(given, 1)]
    else:
        bundled = Path(settings.target).parent == bundled_dir() / profiles.DEMO
        found = suites.load(suite or ("python" if bundled else "code"))
    return suites.select(found, categories, limit, each)


def _show(result: dict[str, Any], before: dict[str, Any] | None, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    from specdec_cli.display import comparison_tables as comparison

    if as_json:
        print(json.dumps(result), flush=True)
    elif as_markdown:
        print(comparison.markdown(result), flush=True)
    else:
        console = Console(highlight=False)
        for part in comparison.tables(result):
            console.print(part)
        if before:
            console.print(comparison.against(result, before))


def _finish(measurement: Measurement, result: dict[str, Any], problems: list[SpecdecError]) -> None:
    """Exit as the finding asks for: 1 if an answer was wrong or something failed, 128 + signal if interrupted."""
    from specdec_cli.decoding.errors import SpecdecError

    wrong = [found for found in result["divergences"] if found["kind"] == "wrong"]
    if wrong:
        first = wrong[0]
        raise SpecdecError(
            f"{len(wrong)} of the answers are not the target's own: {first['arm']} differs on prompt "
            f"{first['prompt']} at token {first['position']}; {first['bug']}",
            "This is a bug in specdec: please report it with the output of --json.",
        )
    if problems:
        raise problems[0]
    raise typer.Exit(measurement.exit_code)
