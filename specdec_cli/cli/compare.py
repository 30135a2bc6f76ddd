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
from specdec_cli.display.status_line import working

if TYPE_CHECKING:
    from specdec_cli.engine.comparison_run import ComparisonRun
    from specdec_cli.evaluation.comparison_result import ComparisonResult
    from specdec_cli.models.suites import Prompt
    from specdec_cli.store.corpora import Source

PAGES = {"html": "specdec_cli.display.comparison_html"}
"""By option, the module that writes a comparison to a file: `require(path)` before measuring, `write(path, result)`
after. Any of them can be removed together with its line."""

_OUTPUT = "Output"


def compare(
    context: typer.Context,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, a suite is used.")] = None,
    target: opt.Target = None,
    draft: opt.Draft = None,
    draft_small: opt.DraftSmall = None,
    profile: opt.Profile = None,
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
    max_tokens: opt.MaxTokens = None,
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
    """Measure ways to decode against the target alone: speed with intervals, exactness, causes."""
    from specdec_cli.decoding.errors import SpecdecError, UsageError
    from specdec_cli.engine import corpus
    from specdec_cli.engine.comparison_run import ComparisonRun, require_exact
    from specdec_cli.engine.prompt import gather
    from specdec_cli.engine.settings import resolve
    from specdec_cli.engine.suite_prompts import choose_prompts
    from specdec_cli.engine.variants import parse_variants
    from specdec_cli.store import comparisons

    if list_:
        entries = [{"name": name, "when": f"{when:%Y-%m-%d %H:%M}"} for name, when in comparisons.kept()]
        typer.echo(json.dumps(entries) if json_ else "\n".join(f"{each['name']}  {each['when']}" for each in entries))
        raise typer.Exit
    named, flags = opt.given(context)
    settings = resolve(named, flags)
    if json_ and md:
        raise UsageError("--json and --md both want the output", "Choose one.")
    if against and (json_ or md):
        raise UsageError("--against is a table on the screen", "Leave out --json and --md; the kept result is JSON.")
    variants = parse_variants(settings, vs or (), sweep or (), draft_named=flags["draft"] is not None)
    run = ComparisonRun(settings, variants, repeat)
    used = [variant.settings.drafter for variant in variants]
    opt.require_used(context, used)
    sources = corpus.sources_of(settings, used)
    piped = None if prompt or prompts else gather(None, None)
    texts = prompt or ([piped] if piped else ())
    chosen = choose_prompts(settings.target, texts, prompts, category or (), limit, per_category)
    if save:
        comparisons.path_of(save)
    pages = [(path, _page(option)) for option, path in {"html": html}.items() if path]
    for path, page in pages:
        page.require(path)
    before = comparisons.load(against) if against else None
    result, code = _measure(run, chosen, sources, system, raw, silent=json_ or md)
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
    run: ComparisonRun, prompts: list[Prompt], sources: list[Source], system: str | None, raw: bool, silent: bool
) -> tuple[ComparisonResult, int]:
    """Load the models once and measure. Returns the exit code too: an interrupt leaves whatever was measured."""
    from specdec_cli.decoding.errors import Interrupted
    from specdec_cli.display.comparison_tables import Progress
    from specdec_cli.engine.corpus import open_corpus
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.session import Session
    from specdec_cli.llama.interrupt import Interrupt

    pair = check_pair(run.loaded)
    with Interrupt() as interrupt:
        try:
            with working("loading", silent):
                session = Session(pair, run.loaded, interrupt)
            with session:
                open_corpus(session, sources, interrupt, silent)
                with Progress(sys.stderr, run.baselines) as progress:
                    result = run.run(session, prompts, system, raw, interrupt.is_set, progress.update)
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
