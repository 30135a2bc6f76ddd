"""`specdec compare`: an A/B measurement of ways to decode, on this machine, with these models and texts."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import options as opt

if TYPE_CHECKING:
    from specdec_cli.cli.measure import Measurement
    from specdec_cli.cli.settings import Settings
    from specdec_cli.models.suites import Prompt

_OUTPUT = "Output"


def compare(
    ctx: typer.Context,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, a suite is used.")] = None,
    target: opt.Target = None,
    draft: opt.Draft = None,
    profile: opt.Profile = None,
    vs: Annotated[list[str] | None, typer.Option(help='Add an arm: "k=8", "k=8,temp=0.8"; may be repeated.')] = None,
    sweep: Annotated[list[str] | None, typer.Option(help='Make an arm of each value: "k=1,2,4,8".')] = None,
    prompts: Annotated[
        str | None, typer.Option(help="A suite by name, or a file of prompts (text, JSONL, YAML).")
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
        str | None, typer.Option(help="Compare with a kept result: its name, or a JSON file.", rich_help_panel=_OUTPUT)
    ] = None,
    draft_tokens: opt.DraftTokens = None,
    draft_min_p: opt.DraftMinP = None,
    drafter: opt.Drafter = None,
    accept: opt.Accept = None,
    temp: opt.Temp = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    seed: opt.Seed = None,
    ctx_size: opt.Ctx = None,
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = None,
    gpu_layers_draft: opt.GpuLayersDraft = None,
) -> None:
    """Measure ways to decode against the target alone: speed with intervals, exactness, causes."""
    from specdec_cli.cli.arms import make_arms
    from specdec_cli.cli.measure import Measurement
    from specdec_cli.cli.settings import resolve
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.display import comparison_html
    from specdec_cli.models import results

    flags = {
        "target": target, "draft": draft, "drafter": drafter, "accept": accept, "draft_tokens": draft_tokens,
        "draft_min_p": draft_min_p, "max_tokens": max_tokens, "temp": temp, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "seed": seed, "ctx": ctx_size, "threads": threads, "gpu_layers": gpu_layers,
        "gpu_layers_draft": gpu_layers_draft,
    }  # fmt: skip
    settings = resolve(*opt.models_named(ctx, profile, flags))
    if repeat < 1:
        raise UsageError(f"repeat cannot be {repeat}", "Give 1 or more; with 1 the machine's noise stays unknown.")
    if json_ and md:
        raise UsageError("--json and --md both want the output", "Choose one.")
    arms = make_arms(settings, vs or (), sweep or ())
    chosen = _prompts(prompt or [], prompts, settings, category or (), limit, per_category)
    if html:
        comparison_html.require()
    for path in [html, results.path_of(save) if save else None]:
        results.require_writable(path)
    before = results.load(against) if against else None

    measurement = _measure(Measurement(settings, arms, repeat), chosen, system, raw)
    result = measurement.to_json()
    if save:
        results.store(save, result)
    if html:
        results.write(html, comparison_html.page(result))
    _show(result, before, json_, md)
    _finish(measurement, result)


def _prompts(
    given: list[str], suite: str | None, settings: Settings, categories: Any, limit: int | None, each: int | None
) -> list[Prompt]:
    """The prompts to compare on: those given, else a suite; the bundled pair completes Python."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.models import profiles, suites

    if given and suite:
        raise UsageError("prompts were given and a suite too", "Give prompts, or --prompts.")
    if given:
        if not all(text.strip() for text in given):
            raise UsageError("a prompt is empty", 'Give texts: specdec compare "def median(values):"')
        found = [suites.Prompt(str(i), "given", text) for i, text in enumerate(given, 1)]
    else:
        bundled = Path(settings.target).parent == profiles.bundled_dir() / profiles.DEMO
        found = suites.load(suite or ("python" if bundled else "code"))
    return suites.select(found, categories, limit, each)


def _measure(measurement: Measurement, prompts: list[Prompt], system: str | None, raw: bool) -> Measurement:
    """Load the models once and run every arm on every prompt, with a live table on a terminal."""
    from specdec_cli.cli.session import Session, check_pair
    from specdec_cli.display.comparison import Progress
    from specdec_cli.llama.interrupt import Interrupt

    loaded = measurement.loaded
    pair = check_pair(loaded)
    with Interrupt() as interrupt, ExitStack() as stack:
        session = stack.enter_context(Session(pair, loaded, interrupt))
        progress = stack.enter_context(Progress(sys.stderr))
        measurement.run(session, prompts, system, raw, interrupt, progress.update)
    return measurement


def _show(result: dict[str, Any], before: dict[str, Any] | None, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    from specdec_cli.display import comparison

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


def _finish(measurement: Measurement, result: dict[str, Any]) -> None:
    """Exit as the finding asks for: 1 if an answer was wrong, 128 + signal if interrupted."""
    from specdec_cli.decoding.errors import SpecdecError

    wrong = [found for found in result["divergences"] if found["sameness"] == "wrong"]
    if wrong:
        first = wrong[0]
        raise SpecdecError(
            f"{len(wrong)} answers are not the target's own: {first['arm']} differs on prompt {first['prompt']} "
            f"at token {first['position']}, where the margin is {first['margin']:.3g}",
            "This is a bug in specdec: please report it with the output of --json.",
        )
    raise typer.Exit(measurement.exit_code)
