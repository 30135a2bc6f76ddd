"""`specdec check`: compares two models by their headers: tokenizers, memory, whether drafting is likely to pay."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.completion import models
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import IncompatiblePair
from specdec_cli.display.terminal import status_line


def check(
    target: Annotated[
        str,
        typer.Argument(help="Target: a .gguf file, REPO:QUANT, REPO/FILE.gguf or a profile.", autocompletion=models),
    ],
    draft: Annotated[
        str | None,
        typer.Argument(help="Draft, in the same forms. \\[default: the profile's]", autocompletion=models),
    ] = None,
    ctx: Annotated[int, typer.Option("--ctx", "-c", min=1, help="Context in tokens for the memory estimate.")] = 4096,
    json_: opt.Json = False,
) -> None:
    """Compare two models' tokenizers, sizes and memory.

    It reads only file headers.

    Exit code 0: you can use them together; 3: you can't; 4: a model can't be reached.
    """
    from specdec_cli.display.pair_tables import check_tables
    from specdec_cli.pairs.pair_check import check_pair_by_name

    with status_line("reading headers", json_):
        result = check_pair_by_name(target, draft, ctx)
    if json_:
        print_json(result)
    else:
        print_parts(check_tables(result))
    if result.verdict == "incompatible":
        raise typer.Exit(IncompatiblePair.exit_code)
