"""`specdec compare`: an A/B measurement of ways to decode, on this machine, with these models and texts."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.display.status_line import status_line

if TYPE_CHECKING:
    from specdec_cli.engine.comparison_run import ComparisonRun
    from specdec_cli.evaluation.comparison_result import ComparisonResult
    from specdec_cli.models.suites import Prompt

PAGES = {"html": "specdec_cli.display.comparison_html"}
"""By option, the module that writes a comparison to a file: `require(path)` before measuring, `write(path, result)`
after. Any of them can be removed together with its line."""

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
    from specdec_cli.cli.prompt_input import gather
    from specdec_cli.decoding.errors import SpecdecError, UsageError
    from specdec_cli.engine.comparison_run import ComparisonRun, require_exact
    from specdec_cli.engine.config_layers import resolve
    from specdec_cli.engine.suite_prompts import choose_prompts
    from specdec_cli.engine.validation import require_used
    from specdec_cli.engine.variants import parse_variants
    from specdec_cli.store import comparisons

    if list_:
        entries = [{"name": name, "when": f"{when:%Y-%m-%d %H:%M}"} for name, when in comparisons.kept()]
        typer.echo(json.dumps(entries) if json_ else "\n".join(f"{each['name']}  {each['when']}" for each in entries))
        raise typer.Exit
    settings = resolve(given.profile, given.flags)
    if json_ and md:
        raise UsageError("--json and --md both want the output", "Choose one.")
    if against and (json_ or md):
        raise UsageError("--against is a table on the screen", "Leave out --json and --md; the kept result is JSON.")
    variants = parse_variants(settings, vs or (), sweep or (), draft_named=given.flags["draft"] is not None)
    run = ComparisonRun(settings, variants, repeat)
    require_used(given.typed, [variant.settings for variant in variants])
    piped = None if prompt or prompts else gather(None, None)
    texts = prompt or ([piped] if piped else ())
    chosen = choose_prompts(settings.target, texts, prompts, category or (), limit, per_category)
    if save:
        comparisons.path_of(save)
    pages = [(path, _page(option)) for option, path in {"html": html}.items() if path]
    for path, page in pages:
        page.require(path)
    before = comparisons.load(against) if against else None
    result, code = _measure(run, chosen, system, raw, silent=json_ or md)
    _show(result, before, json_, md)
    writers = [partial(comparisons.store, save)] if save else []
    errors = [run.error] if run.error else []
    for write in [*writers, *(partial(page.write, path) for path, page in pages)]:
        try:
            write(result)
        except SpecdecError as error:
            errors.append(error)
    require_exact(result)
    if errors:
        raise errors[0]
    raise typer.Exit(code)


def _page(option: str) -> Any:
    from specdec_cli.decoding.errors import UsageError

    if option not in PAGES:
        raise UsageError(f"--{option} is not part of this installation", "Use --md or --json.")
    return import_module(PAGES[option])


def _measure(
    run: ComparisonRun, prompts: list[Prompt], system: str | None, raw: bool, silent: bool
) -> tuple[ComparisonResult, int]:
    """Load the models once and measure. Returns the exit code too: an interrupt leaves whatever was measured."""
    from specdec_cli.decoding.errors import Interrupted
    from specdec_cli.display.comparison_tables import Progress
    from specdec_cli.engine.engine import Engine
    from specdec_cli.llama.interrupt import Interrupt

    with Interrupt() as interrupt:
        try:
            with status_line("loading", silent) as say:
                engine = Engine(run.loaded, interrupt, ways=run.ways)
                engine.read_corpus(say)
            with engine, Progress(sys.stderr, run.baselines) as progress:
                result = run.run(engine, prompts, system, raw, interrupt.is_set, progress.update)
        except Interrupted:
            print("specdec: interrupted before anything was measured", file=sys.stderr)
            raise typer.Exit(interrupt.exit_code) from None
        return result, interrupt.exit_code


def _show(result: ComparisonResult, before: ComparisonResult | None, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    from specdec_cli.display import comparison_tables

    if as_json:
        print(json.dumps(result.to_json()), flush=True)
    elif as_markdown:
        print(comparison_tables.markdown(result), flush=True)
    else:
        console = Console(highlight=False)
        for part in comparison_tables.tables(result):
            console.print(part)
        if before:
            console.print(comparison_tables.against(result, before))
