"""`specdec compare`: measures variants against the target alone, with the user's models and prompts."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.loading import loaded
from specdec_cli.cli.output import json_text, print_json, print_parts, require_writable_file, write_file
from specdec_cli.cli.prompt_input import gather
from specdec_cli.decoding.errors import UsageError
from specdec_cli.display.terminal import status_line

if TYPE_CHECKING:
    from specdec_cli.measure.compare import ComparisonResult, ComparisonRun
    from specdec_cli.measure.suites import SuitePrompt

_output = partial(typer.Option, rich_help_panel="Output")
_Suite = Annotated[
    str | None,
    typer.Option(
        help="A suite (chat, code, creative, edit, edits, python, reasoning, structured, summarisation, translation) "
        "or a file of prompts (text, JSONL, YAML).",
        autocompletion=completion.prompts,
    ),
]


@opt.takes(*opt.ALL)
def compare(
    given: opt.Given,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts. Without any, a suite is used.")] = None,
    vs: Annotated[
        list[str] | None, typer.Option(help='Add a variant, such as "k=8" or "k=8,temp=0.8". May be repeated.')
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help='Add a variant for each value: "k=1,2,4" (and k=auto, for lengths).')
    ] = None,
    prompts: _Suite = None,
    category: Annotated[list[str] | None, typer.Option(help="Use only this category. May be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use at most this many prompts.")] = None,
    per_category: Annotated[int | None, typer.Option(help="Use at most this many prompts of each category.")] = None,
    repeat: Annotated[int, typer.Option(help="Rounds per prompt, in alternating order.")] = 2,
    raw: opt.Raw = False,
    system: opt.System = None,
    json_: Annotated[bool, _output("--json", help="Print all data as JSON.")] = False,
    md: Annotated[bool, _output("--md", help="Print Markdown, to paste into an issue.")] = False,
    html: Annotated[
        Path | None, _output("--output", "-o", metavar="FILE.html", help="Write a page with charts to this file.")
    ] = None,
    save: Annotated[str | None, _output(help="Save the result under this name.")] = None,
    against: Annotated[
        str | None,
        _output(help="Compare with a saved result: its name, or a .json file.", autocompletion=completion.results),
    ] = None,
    list_: Annotated[bool, _output("--list", help="List the saved results.")] = False,
) -> None:
    from specdec_cli.measure import saved_comparisons
    from specdec_cli.measure.compare import ComparisonRun, require_exact
    from specdec_cli.measure.suites import choose_prompts
    from specdec_cli.measure.variants import parse_variants
    from specdec_cli.pairs.config_layers import require_used, resolve

    if list_:
        _list(json_)
        return
    settings = resolve(given.profile, given.flags)
    if json_ and md:
        raise UsageError("--json and --md can't be used together", "Choose one.")
    if against and (json_ or md):
        raise UsageError("--against can't be used with --json or --md", "Leave one out. --save writes JSON, too.")
    variants = parse_variants(settings, vs or (), sweep or (), draft_named=given.flags["draft"] is not None)
    run = ComparisonRun(settings, variants, repeat)
    require_used(given.typed, [variant.settings for variant in variants])
    piped = None if prompt or prompts else gather(None, None)
    texts = [gather("-", None) or "" if each == "-" else each for each in prompt or ([piped] if piped else ())]
    chosen = choose_prompts(settings.target, texts, prompts, category or (), limit, per_category)
    if save:
        saved_comparisons.require_writable_file(save)
    if html:
        require_writable_file(html)
    before = saved_comparisons.load(against) if against else None
    result, code = _measure(run, chosen, system, raw, silent=json_ or md)
    result = replace(result, command=_command(sys.argv[1:]))
    with ExitStack() as outputs:  # the last one first; if one fails, the others still come
        outputs.callback(require_exact, result)
        outputs.callback(_show, result, before, json_, md)
        if html:
            from specdec_cli.display import comparison_html

            outputs.callback(lambda: write_file(html, comparison_html.page(result)))
        if save:
            outputs.callback(saved_comparisons.store, save, result)
    if run.error:
        raise run.error
    raise typer.Exit(code)


def _command(arguments: list[str]) -> str:
    """The command line, with file names instead of paths: others may see it on a page, and paths may name the user."""
    shown = []
    for argument in arguments:
        match = re.match(r"--[^=]+=|-[A-Za-z]+=?", argument)
        option = match[0] if match else ""
        path = Path(argument.removeprefix(option))
        try:
            is_new = path.is_absolute() and (" " not in argument or path.parent.is_dir())
            is_file = len(path.parts) > 1 and (is_new or path.exists())
        except OSError:  # a prompt that is too long for a file name
            is_file = False
        shown.append(f"{option}{path.name}" if is_file else argument)
    return shlex.join(["specdec", *shown])


def _list(as_json: bool) -> None:
    from specdec_cli.measure import saved_comparisons

    entries = [{"name": name, "when": f"{when:%Y-%m-%d %H:%M}"} for name, when in saved_comparisons.kept()]
    if as_json:
        print(json_text(entries))
    elif entries:
        print("\n".join(f"{each['name']}  {each['when']}" for each in entries))
    else:
        print("No results are saved.", file=sys.stderr)


def _measure(
    run: ComparisonRun, prompts: list[SuitePrompt], system: str | None, raw: bool, silent: bool
) -> tuple[ComparisonResult, int]:
    """Load the models and measure. Returns the result, partial after an interrupt, and the exit code."""
    from specdec_cli.weights.model_pair import check_pair

    with (
        interruptible(" before anything was measured") as interrupt,
        loaded(run.loaded, check_pair(run.loaded), interrupt, silent, run.drafting) as engine,
    ):
        started = monotonic()
        with status_line("measuring", silent=False) as say:

            def update(done: int, total: int) -> None:
                left = (monotonic() - started) / done * (total - done)
                say(f"{done} of {total} runs, about {left:,.0f} s left" if done < total else "checking the answers")

            result = run.run(engine.session(), prompts, system, raw, update)
        return result, interrupt.exit_code


def _show(result: ComparisonResult, before: ComparisonResult | None, as_json: bool, as_markdown: bool) -> None:
    from specdec_cli.display import comparison_tables

    if as_json:
        print_json(result.to_json())
    elif as_markdown:
        print(comparison_tables.markdown(result), flush=True)
    else:
        print_parts(*comparison_tables.tables(result))
        if before:
            print_parts(comparison_tables.against(result, before))
