"""`specdec check`: compares two models by their headers: tokenizers, memory, whether drafting is likely to pay."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.completion import models, pairs
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import IncompatiblePair, UsageError
from specdec_cli.display.terminal import status_line

_FORMS = "Name two models, or a profile: specdec check -m TARGET -md DRAFT, or specdec check -p PROFILE."


def check(
    first: Annotated[
        str | None, typer.Argument(metavar="target", help="The same as -m.", autocompletion=models)
    ] = None,
    second: Annotated[
        str | None, typer.Argument(metavar="draft", help="The same as -md.", autocompletion=models)
    ] = None,
    target: Annotated[
        str | None, opt.target(help="Target: a .gguf file, REPO:QUANT, REPO/FILE.gguf or a profile.")
    ] = None,
    draft: Annotated[str | None, opt.draft(help="Draft, in the same forms.")] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="Model pair by name (see specdec ls).", autocompletion=pairs)
    ] = None,
    ctx: Annotated[int, typer.Option("--ctx", "-c", min=1, help="Context in tokens for the memory estimate.")] = 4096,
    json_: opt.Json = False,
) -> None:
    """It reads only file headers.

    Exit code 0: you can use them together; 3: you can't; 4: a model can't be reached.
    """
    from specdec_cli.display.pair_tables import check_tables
    from specdec_cli.pairs.pair_check import check_pair_by_name

    pair = _pair([each for each in (first, second) if each], target, draft, profile)
    with status_line("reading headers", json_):
        result = check_pair_by_name(*pair, ctx)
    if json_:
        print_json(result)
    else:
        print_parts(check_tables(result))
    if result.verdict == "incompatible":
        raise typer.Exit(IncompatiblePair.exit_code)


def _pair(rest: list[str], target: str | None, draft: str | None, profile: str | None) -> tuple[str, str | None]:
    """Target and draft: from the options, else from the arguments `rest`. A profile stands for both of its models."""
    given = [each for each in (target, draft, profile, *rest) if each]
    first = target or (rest.pop(0) if rest else profile)
    second = draft or (rest.pop(0) if rest else profile if first != profile else None)
    if first is None or len(given) > 2:
        raise UsageError("there are too many models" if first else "there is no model to check", _FORMS)
    return first, second
