"""`specdec export`: the settings of a pair for the engine that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import UsageError


@opt.takes(
    *("target", "draft", "profile", "drafter", "temp", "top_k", "top_p", "min_p"),
    *("ctx", "threads", "gpu_layers", "gpu_layers_draft"),
)
def export(
    given: opt.Given,
    engine: Annotated[
        str,
        typer.Argument(
            help="llama-server, vllm, sglang, lm-studio or ollama.", autocompletion=completion.serving_engines
        ),
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
    """Write a pair's settings for another engine: what starts it, which draft length suits it, and what is lost.

    The length is the best fixed one for the recorded text and the measured costs (specdec tune).
    """
    from specdec_cli.measure.served_pair import served_pair
    from specdec_cli.measure.serving_formats import ENGINES
    from specdec_cli.user_files import write_whole

    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}", f"Engines: {', '.join(ENGINES)}.")
    chosen = ENGINES[engine]
    pair = served_pair(given.profile, given.flags, chosen.policy, what_if)
    settings = chosen.write(pair)
    if output is not None:
        write_whole(output, settings.text)
    if json_:
        found = {"engine": engine, "command": settings.command, "text": settings.text, "setting": pair.setting}
        print_json({**found, "expected": pair.expected, "lost": chosen.lost(pair), "checked": chosen.checked})
        return
    print(settings.command or settings.text, flush=True)
    print_parts(*pair.expected, stderr=True)
    print_parts(f"Lost in {chosen.title}:", *(f"- {line}" for line in chosen.lost(pair)), stderr=True)
    print_parts(f"{chosen.title}: {chosen.checked}.", stderr=True)
