"""`specdec draft`: makes a copy of the target with fewer layers or bits, or trains a draft on its answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.make_drafts.draft_copy import DraftCopyResult
    from specdec_cli.make_drafts.recipe import Recipe
    from specdec_cli.make_drafts.training_run import DraftTrainingResult

draft = typer.Typer(no_args_is_help=True, add_completion=False)

_Out = Annotated[Path, typer.Option("--output", "-o", metavar="OUT.gguf", help="File to write the draft to.")]
_NOTHING_LEFT = "; nothing was written"
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]


def _target(given: opt.Given) -> str:
    if name := given.flags["target"]:
        return str(name)
    raise UsageError("no target is named", "Name one with -m: a .gguf file, REPO:QUANT or a profile.")


@draft.command()
@opt.takes("target", "threads", "gpu_layers")
def prune(
    given: opt.Given,
    out: _Out,
    keep_layers: Annotated[
        str | None, typer.Option(metavar="LIST", help="Layers to keep, counted from 0: 0-7,31.")
    ] = None,
    search: Annotated[
        int | None, typer.Option(metavar="N", help="Find the N layers that keep the most agreement with the target.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="A suite or a file of prompts for --search, as in compare. \\[default: python]")
    ] = None,
    force: _Force = False,
    json_: opt.Json = False,
) -> None:
    """Copy a target with fewer layers.

    --search removes one layer at a time until N are left: each time the one that costs the least agreement with the
    target.
    """
    from specdec_cli.display.draft_making import DraftView
    from specdec_cli.make_drafts.draft_copy import CopyOptions
    from specdec_cli.make_drafts.prune import LayerSearch
    from specdec_cli.make_drafts.prune import prune as prune_target

    if (keep_layers is None) == (search is None):
        raise UsageError("say which layers to keep", "Give --keep-layers LIST or --search N, and not both.")
    if prompts is not None and search is None:
        raise UsageError("--prompts is only for --search", "Leave it out, or add --search N.")

    with interruptible(_NOTHING_LEFT) as interrupt, DraftView(json_) as view:
        options = CopyOptions(_target(given), out, force, given.flags["threads"], interrupt, view)
        layers: str | LayerSearch = keep_layers or ""
        if search is not None:
            view.waiting("letting the target answer")
            gpu_layers = given.flags["gpu_layers"]
            layers = LayerSearch(search, prompts, -1 if gpu_layers is None else gpu_layers)
        result = prune_target(options, layers)
    _show(result, json_)


@draft.command()
@opt.takes("target", "threads")
def quantize(
    given: opt.Given,
    out: _Out,
    type_: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Quantisation of the copy: Q2_K, Q3_K_M, IQ4_XS, ...")
    ],
    force: _Force = False,
    json_: opt.Json = False,
) -> None:
    """Copy a target with fewer bits per weight."""
    from specdec_cli.display.draft_making import DraftView
    from specdec_cli.make_drafts.draft_copy import CopyOptions
    from specdec_cli.make_drafts.quantize import quantize as quantize_target

    with interruptible(_NOTHING_LEFT) as interrupt, DraftView(json_) as view:
        options = CopyOptions(_target(given), out, force, given.flags["threads"], interrupt, view)
        result = quantize_target(options, type_)
    _show(result, json_)


def _show(result: DraftCopyResult | DraftTrainingResult, as_json: bool) -> None:
    from specdec_cli.display.draft_making import copy_tables, training_tables
    from specdec_cli.make_drafts.draft_copy import DraftCopyResult

    if as_json:
        print_json(result)
        return
    print_parts(copy_tables(result) if isinstance(result, DraftCopyResult) else training_tables(result))
    print(f"Use it:\n{result.run}")  # on one line, to be copied


_Words = Annotated[
    int | None, typer.Option(help="Size of its vocabulary: the target's most frequent tokens. \\[default: up to 8192]")
]
_Width = Annotated[int | None, typer.Option(help="Size of its hidden state.")]


def distill(
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="DRAFT.gguf|scratch", help="A small model of the same family, or scratch for a new one."
        ),
    ],
    words: _Words = None,
    width: _Width = None,
    depth: Annotated[int | None, typer.Option(help="Layers of a new model. \\[default: 2]")] = None,
) -> Recipe:
    """Train a draft model on the target's answers. --from scratch makes a small new one."""
    from specdec_cli.make_drafts.recipe import DistilRecipe, ScratchRecipe
    from specdec_cli.pairs.model_sources import read_local

    if from_ == "scratch":
        return ScratchRecipe(words, width, 2 if depth is None else depth)
    if (words, width, depth) != (None, None, None):
        raise UsageError("--words, --width and --depth are only for --from scratch", "Leave them out.")
    return DistilRecipe(read_local(from_)[0])


def eagle3(words: _Words = None, width: _Width = None) -> Recipe:
    """Train an EAGLE-3 head: one layer that reads the target's hidden states."""
    from specdec_cli.make_drafts.recipe import Eagle3Recipe

    return Eagle3Recipe(width, words)


def medusa(
    heads: Annotated[int, typer.Option(help="Number of heads, one for each token ahead.")] = 4, words: _Words = None
) -> Recipe:
    """Train Medusa heads: small layers, each for one token further ahead."""
    from specdec_cli.make_drafts.recipe import MedusaRecipe

    return MedusaRecipe(heads, words)


def exit_(layers: Annotated[int, typer.Option(help="How many of the target's first layers to use.")]) -> Recipe:
    """Train the target's first layers to draft, for --drafter self."""
    from specdec_cli.make_drafts.recipe import ExitRecipe

    return ExitRecipe(layers)


def _train(
    recipe: Recipe,
    given: opt.Given,
    out: _Out,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Prompts for the target: a suite, a file as in compare, or `conversations` for your saved chats. "
            "\\[default: a mixture]"
        ),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Prompts to measure on. \\[default: a fifth of --prompts]")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the target's answers to learn from.")] = 100_000,
    longest: Annotated[int, typer.Option("--max-tokens", "-n", help="Max tokens of an answer.")] = 256,
    temps: Annotated[str, typer.Option(metavar="T[,T...]", help="Temperatures of the answers.")] = "0,0.8",
    raw: opt.Raw = False,
    minutes: Annotated[float, typer.Option(help="Minutes of training, after the answers are written.")] = 20.0,
    steps: Annotated[
        int | None, typer.Option(help="Train this many steps instead of --minutes, so that a run can be repeated.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.003,
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for texts and progress. \\[default: beside OUT.gguf]"),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="DRAFT", help="Another draft to compare the new one with.")
    ] = None,
    what_if: Annotated[
        list[str] | None, opt.hardware(help="Also predict the speed on another machine; may be repeated.")
    ] = None,
    force: _Force = False,
    json_: opt.Json = False,
) -> None:
    """Train by a recipe. Every training command has these options."""
    from specdec_cli.display.draft_making import DraftView
    from specdec_cli.make_drafts.recipe import TrainingOptions
    from specdec_cli.make_drafts.training_run import train_draft

    try:
        temperatures = tuple(float(each) for each in temps.split(","))
    except ValueError:
        raise UsageError(f"{temps!r} isn't a list of temperatures", "Write it as in --temps 0,0.8.") from None
    gpu_layers = given.flags["gpu_layers"]
    options = TrainingOptions(
        target=_target(given),
        out=out,
        prompts=prompts,
        held_out=held_out,
        tokens=tokens,
        longest=longest,
        temperatures=temperatures,
        minutes=minutes,
        steps=steps,
        lr=lr,
        folder=work,
        before=against,
        what_if=tuple(what_if or ()),
        raw=raw,
        force=force,
        threads=given.flags["threads"],
        gpu_layers=-1 if gpu_layers is None else gpu_layers,
    )
    with interruptible("; the same command continues from here") as interrupt, DraftView(json_) as view:
        result = train_draft(recipe, options, view, interrupt)
    _show(result, json_)


def _options_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    signature = inspect.signature(function, eval_str=True, locals={"Recipe": object})
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]


def _trains(recipe_of: Callable[..., Recipe]) -> Callable[..., None]:
    """A command that trains by a recipe. `recipe_of` makes the recipe from its own options."""
    own, (_, given, *shared) = _options_of(recipe_of), _options_of(_train)

    def run(given: opt.Given, **arguments: Any) -> None:
        recipe = recipe_of(**{option.name: arguments.pop(option.name) for option in own})
        _train(recipe, given, **arguments)

    given = given.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return opt.with_parameters(recipe_of, run, [given, *own, *shared])


for recipe_of in (distill, eagle3, medusa, exit_):
    draft.command(recipe_of.__name__.rstrip("_"))(opt.takes("target", "threads", "gpu_layers")(_trains(recipe_of)))
