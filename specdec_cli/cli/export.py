"""`specdec export`: prints the settings of a pair for another engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json, print_parts


@opt.takes(
    *("target", "draft", "profile", "drafter", "temperature", "top_k", "top_p", "min_p"),
    *("ctx", "threads", "gpu_layers", "gpu_layers_draft"),
)
def export(
    given: opt.Given,
    engine: Annotated[
        str, typer.Argument(help="llama-server, vllm or sglang.", autocompletion=completion.serving_engines)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write a settings file.")
    ] = None,
    what_if: Annotated[str | None, opt.hardware(help="Choose the length for another machine.")] = None,
    json_: opt.Json = False,
) -> None:
    """The draft length is the best fixed one by what specdec tune measured."""
    from specdec_cli.display.tables import bullets
    from specdec_cli.measure import export as exports
    from specdec_cli.user_files import write_whole

    found = exports.export(engine, given.profile, given.flags, what_if)
    if output is not None:
        write_whole(output, found.text)
    if json_:
        print_json(found)
        return
    print(found.command, flush=True)  # on one line, to be copied
    print_parts(*found.expected, stderr=True)
    if found.measure:
        print(f"To measure it:\n{found.measure}", file=sys.stderr)
    print_parts(f"Differences in {engine}:", bullets(found.lost), f"Checked: {found.checked}.", stderr=True)
