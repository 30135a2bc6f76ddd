"""`specdec check`: do two models share a tokenizer, do they fit, are they likely to pay? From their headers alone."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specdec_cli.cli.completion import models
from specdec_cli.display.status_line import status_line


def check(
    target: Annotated[
        str,
        typer.Argument(help="Target: a .gguf file, REPO:QUANT, REPO/FILE.gguf or a profile.", autocompletion=models),
    ],
    draft: Annotated[
        str | None,
        typer.Argument(help="Draft, named likewise. \\[default: the profile's own]", autocompletion=models),
    ] = None,
    ctx: Annotated[int, typer.Option("--ctx", "-c", min=1, help="Context in tokens that memory is told for.")] = 4096,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two models' tokenizers, sizes and memory before any weights are downloaded or loaded.

    Exit code 0: they can be used together; 3: they cannot; 4: a model cannot be reached.
    """
    from specdec_cli.decoding.errors import IncompatiblePair, UsageError
    from specdec_cli.engine import model_source as sources
    from specdec_cli.models import tokenizer_comparison

    notes: list[str] = []
    if draft is None and not sources.is_profile(target):
        raise UsageError("no draft was named to compare with", "Name one after the target, or a profile alone.")
    names = (sources.named(target, "target"), sources.named(draft or target, "draft"))
    with status_line("reading headers", json_):
        first, second = (sources.read(name, notes, here_first=True) for name in names)
        comparison = tokenizer_comparison.compare(first.header, second.header)
        result = sources.judged(first, second, comparison, ctx)
    result["notes"] = [*notes, *sources.problems(first), *sources.problems(second)]
    if json_:
        print(json.dumps(result), flush=True)
    else:
        from rich.console import Console

        from specdec_cli.display import pair_tables as pairs

        console = Console(highlight=False)
        for part in pairs.check_tables(result):
            console.print(part)
    if comparison.verdict == "incompatible":
        raise typer.Exit(IncompatiblePair.exit_code)
