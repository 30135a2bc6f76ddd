"""`specdec export`: the settings of a pair for the engine that serves it."""

from __future__ import annotations

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
        str,
        typer.Argument(help="llama-server, vllm or sglang.", autocompletion=completion.serving_engines),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write its settings file, too.")
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="HARDWARE", help="Choose for another machine than this one.", autocompletion=completion.machines
        ),
    ] = None,
    json_: opt.Json = False,
) -> None:
    """Print the settings of a pair for another engine.

    The length is the best fixed one for the recorded text and the measured costs (specdec tune).
    """
    from specdec_cli.measure import export as exports
    from specdec_cli.user_files import write_whole

    found = exports.export(engine, given.profile, given.flags, what_if)
    if output is not None:
        write_whole(output, found.text)
    if json_:
        print_json(found)
        return
    print(found.command, flush=True)
    lost = (f"- {line}" for line in found.lost)
    print_parts(*found.expected, f"Lost in {engine}:", *lost, f"{engine}: {found.checked}.", stderr=True)
