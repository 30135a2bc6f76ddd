"""The options that several commands share, each spelt once, and what was given of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specdec_cli.cli import completion

_MODEL, _SPEC, _SAMPLING, _MACHINE = "Models", "Speculation", "Sampling", "Machine"


@dataclass(frozen=True, slots=True)
class Given:
    """What a command was given of the settings.

    profile: the pair named. flags: by the names of settings, None where nothing was given. typed: what stood on the
    command line itself, and not in a SPECDEC_* variable. help: the command's.
    """

    profile: str | None
    flags: dict[str, Any]
    typed: frozenset[str]
    help: Callable[[], str]


def _option(kind: Any, panel: str | None, help_: str, *flags: str, default: str = "", **more: Any) -> tuple[Any, ...]:
    """An option: its type, and Typer's arguments but for the variable, which follows from its name."""
    help_ += f" \\[default: {default}]" if default else ""
    return kind, flags, {"help": help_, "rich_help_panel": panel, **more}


_OPTIONS: dict[str, tuple[Any, ...]] = {
    "target": _option(
        str,
        _MODEL,
        "Target model: a .gguf file, REPO:QUANT (pulled), or a profile.",
        "--target",
        "-m",
        autocompletion=completion.models,
    ),
    "draft": _option(
        str,
        _MODEL,
        "Draft model: a .gguf file, REPO:QUANT (pulled), or a profile.",
        "--draft",
        "-md",
        autocompletion=completion.models,
    ),
    "draft_small": _option(
        str,
        _MODEL,
        "A still smaller model that drafts for the draft model: --drafter small>model.",
        "--draft-small",
        "-mds",
        autocompletion=completion.models,
    ),
    "profile": _option(
        str,
        _MODEL,
        "A named pair (specdec ls); sets both models. Default: the bundled demo.",
        "--profile",
        "-p",
        autocompletion=completion.pairs,
    ),
    "max_tokens": _option(int, None, "Tokens to generate at most.", "--max-tokens", "-n", default="256"),
    "draft_tokens": _option(
        str,
        _SPEC,
        "Tokens to draft per step; auto: as many as pay, none included.",
        "--draft-tokens",
        "-k",
        default="auto",
        metavar="N|auto",
    ),
    "draft_min_p": _option(
        float, _SPEC, "Stop drafting where the draft's best token has less probability.", default="0"
    ),
    "tree": _option(
        int,
        _SPEC,
        "Draft a tree of up to W branches instead of a chain; -k counts all its tokens.",
        "--tree",
        default="1",
        metavar="W",
    ),
    "lookahead": _option(
        str,
        _SPEC,
        "For --drafter lookahead: window, size of n-grams, how many to verify at once.",
        "--lookahead",
        default="4:3:4",
        metavar="W:N:G",
    ),
    "drafter": _option(
        str,
        _SPEC,
        "What drafts: model, ngram or lookahead (need none), self (a copy of the target made by specdec draft), none; "
        "ngram+model and model<ngram combine two (specdec drafters).",
        default="model",
        autocompletion=completion.drafters,
    ),
    "ngram_corpus": _option(
        list[Path],
        _SPEC,
        "A file or folder, such as your code base, that ngram also drafts from; may be repeated.",
        metavar="PATH",
    ),
    "accept": _option(
        str,
        _SPEC,
        "How drafts are accepted: rejection (accepts most), or coupled and match (with a seed, the very text of the "
        "target alone); typical is LOSSY: faster, another distribution.",
        default="coupled with --seed or --bitwise, else rejection",
        autocompletion=completion.rules,
    ),
    "bitwise": _option(
        bool,
        _SPEC,
        "Draft only within passes that round alike here, so that the text is the target's own to the bit.",
        "--bitwise/--no-bitwise",
    ),
    "temp": _option(float, _SAMPLING, "Temperature; 0 is greedy.", "--temp", default="0"),
    "top_k": _option(int, _SAMPLING, "Keep the k likeliest tokens; 0 is off.", "--top-k", default="40"),
    "top_p": _option(float, _SAMPLING, "Keep the likeliest tokens up to this sum; 1 is off.", default="0.95"),
    "min_p": _option(float, _SAMPLING, "Drop tokens below this share of the likeliest; 0 is off.", default="0.05"),
    "repeat_penalty": _option(float, _SAMPLING, "Penalty for recent tokens; 1 is off.", default="1"),
    "frequency_penalty": _option(float, _SAMPLING, "Penalty for each recent occurrence.", default="0"),
    "presence_penalty": _option(float, _SAMPLING, "Penalty for having occurred recently.", default="0"),
    "repeat_last_n": _option(int, _SAMPLING, "How many tokens back the penalties look.", default="64"),
    "seed": _option(int, _SAMPLING, "Seed for sampling.", "--seed", "-s", default="random"),
    "ctx": _option(int, _MACHINE, "Context in tokens.", "--ctx", "-c", default="what prompt and -n need"),
    "threads": _option(int, _MACHINE, "CPU threads.", "--threads", "-t", default="the physical cores"),
    "threads_draft": _option(
        int, _MACHINE, "CPU threads of the draft model.", "--threads-draft", "-td", default="as --threads"
    ),
    "gpu_layers": _option(int, _MACHINE, "Target layers on the GPU; -1 is all.", "--gpu-layers", "-ngl", default="-1"),
    "gpu_layers_draft": _option(
        int, _MACHINE, "Draft layers on the GPU; -1 is all.", "--gpu-layers-draft", "-ngld", default="-1"
    ),
}
ALL = tuple(_OPTIONS)
"""The names of all options of settings."""

PromptFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="System message, for models with a chat template.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def annotation(name: str) -> Any:
    """The type of one option of settings, as Typer takes it; also of commands that take no others."""
    kind, flags, arguments = _OPTIONS[name]
    return Annotated[kind | None, typer.Option(*flags, envvar=f"SPECDEC_{name.upper()}", **arguments)]


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take options of settings: it gets what was given of them as its first argument, a `Given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        hints = get_type_hints(command, include_extras=True)
        parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
        parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation(name))
            for name in names
        ]

        @functools.wraps(command)
        def run(context: typer.Context, **arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in names}
            command(_given(context, flags), **arguments)

        del run.__wrapped__  # Typer would look at the signature behind this one
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _given(context: typer.Context, flags: dict[str, Any]) -> Given:
    """Models named on the command line, one way or the other, count for more than those that SPECDEC_* variables
    name, so what a weaker source says of them is left out.
    """
    typed = frozenset(name for name in flags if _is_typed(context, name))
    flags = {name: None if value in ((), []) else value for name, value in flags.items()}
    profile: str | None = flags.pop("profile", None)
    if typed & {"profile", "target"}:
        flags |= {name: None for name in ("target", "draft") if name not in typed}
        profile = profile if "profile" in typed else None
    return Given(profile, flags, typed, context.get_help)


def _is_typed(context: typer.Context, name: str) -> bool:
    where = context.get_parameter_source(name)
    return where is not None and where.name == "COMMANDLINE"
