"""`specdec draft`: a draft model made of the target itself, with layers left out or with fewer bits."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.completion import models
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.training_commands import add_to

if TYPE_CHECKING:
    from specdec_cli.pairs.results import DraftCopyResult

SEARCHES = {"search": "specdec_cli.make_drafts.layer_search"}
"""By option, the module whose `LayerSearch` finds the layers that a draft keeps. The module can be removed together
with its line: the option is hidden and refused then."""

draft = typer.Typer(
    help="Make a draft for a target: a copy with fewer layers or bits, or one that learns from it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="Target: a .gguf file, REPO:QUANT (pulled), or a profile.", autocompletion=models
    ),
]
_Out = Annotated[Path, typer.Option("--out", "-o", metavar="OUT.gguf", help="The draft's file.")]
_NOTHING_LEFT = "; nothing was written"
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the draft's file if it is there.")]


@draft.command()
@opt.takes("threads", "gpu_layers")
def prune(
    given: opt.Given,
    target: _TargetName,
    out: _Out,
    keep_layers: Annotated[str | None, typer.Option(metavar="LIST", help="Layers to keep, from 0: 0-7,31.")] = None,
    search: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Find N layers to keep, by measured agreement with the target.",
            hidden="search" not in SEARCHES,
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Suite or file of prompts to search by, as in compare. \\[default: python]",
            hidden="search" not in SEARCHES,
        ),
    ] = None,
    force: _Force = False,
    json_: opt.Json = False,
) -> None:
    """Copy a target with some of its layers only.

    --search drops the layer whose loss costs least agreement with the target, again and again, until N are left.
    """
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.display.draft_making import DraftView
    from specdec_cli.make_drafts import draft_copy

    if (keep_layers is None) == (search is None):
        raise UsageError("which layers stay is not said, or said twice", "Give --keep-layers LIST, or --search N.")
    if prompts is not None and search is None:
        raise UsageError("--prompts is for --search", "Leave one of them out.")
    if search is not None and "search" not in SEARCHES:
        raise UsageError("--search is not part of this installation", "Give --keep-layers LIST.")

    with interruptible(_NOTHING_LEFT) as interrupt, DraftView(json_) as display:
        options = draft_copy.CopyOptions(target, out, force, given.flags["threads"], interrupt, display.copying)
        layers: draft_copy.LayerChoice = draft_copy.ListedLayers(keep_layers or "")
        if search is not None:
            display.answering()
            gpu_layers = given.flags["gpu_layers"]
            finder = import_module(SEARCHES["search"]).LayerSearch
            layers = finder(search, prompts, -1 if gpu_layers is None else gpu_layers, display)
        result = draft_copy.prune(options, layers)
    _show(result, json_)


@draft.command()
@opt.takes("threads")
def quantize(
    given: opt.Given,
    target: _TargetName,
    out: _Out,
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help="The copy's type: Q2_K, Q3_K_M, IQ4_XS, ...")],
    force: _Force = False,
    json_: opt.Json = False,
) -> None:
    """Copy a target with fewer bits to a weight."""
    from specdec_cli.display.draft_making import DraftView
    from specdec_cli.make_drafts import draft_copy

    with interruptible(_NOTHING_LEFT) as interrupt, DraftView(json_) as display:
        options = draft_copy.CopyOptions(target, out, force, given.flags["threads"], interrupt, display.copying)
        result = draft_copy.quantise(options, type_)
    _show(result, json_)


def _show(result: DraftCopyResult, as_json: bool) -> None:
    """Say what a draft is and how to use it."""
    from specdec_cli.cli.output import print_json, print_parts
    from specdec_cli.display.draft_making import copy_tables

    if as_json:
        print_json(result)
        return
    print_parts(copy_tables(result))
    print(f"Use it:  {result.run}")  # in one line, to be copied


add_to(draft)
