"""The options that several commands share, each spelt once, and what was given of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specdec_cli.cli import completion


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


def _option(
    panel: str | None, kind: Any, help_: str, short: str = "", default: str = "", **more: Any
) -> tuple[Any, str, dict[str, Any]]:
    """An option: its type, its short form, and Typer's arguments but for those that follow from its name."""
    help_ += f" \\[default: {default}]" if default else ""
    return kind, short, {"help": help_, "rich_help_panel": panel, **more}


_model = partial(_option, "Models", str, autocompletion=completion.models)
_model_files = partial(_option, "Models", list[str], metavar="FILE[:SCALE]")
_spec, _sampling, _machine = (partial(_option, panel) for panel in ("Speculation", "Sampling", "Machine"))

_OPTIONS = {
    "target": _model("Target model: a .gguf file, REPO:QUANT (pulled), or a profile.", "-m"),
    "draft": _model("Draft model: a .gguf file, REPO:QUANT (pulled), or a profile.", "-md"),
    "draft_small": _model("A still smaller model that drafts for the draft model: --drafter small>model.", "-mds"),
    "lora": _model_files("A LoRA adapter of the target, a .gguf file, and its scale, else 1; may be repeated."),
    "lora_draft": _model_files("A LoRA adapter of the draft model; may be repeated."),
    "profile": _option(
        "Models",
        str,
        "A named pair (specdec ls); sets both models. Default: the bundled demo.",
        "-p",
        autocompletion=completion.pairs,
    ),
    "max_tokens": _option(None, int, "Tokens to generate at most.", "-n", "256"),
    "draft_tokens": _spec(
        str, "Tokens to draft per step; auto: as many as pay, none included.", "-k", "auto", metavar="N|auto"
    ),
    "draft_min_p": _spec(float, "Stop drafting where the draft's best token has less probability.", default="0"),
    "tree": _spec(
        int,
        "Draft a tree of up to W branches instead of a chain; -k counts all its tokens.",
        default="1",
        metavar="W",
    ),
    "lookahead": _spec(
        str,
        "For --drafter lookahead: window, size of n-grams, how many to verify at once.",
        default="4:3:4",
        metavar="W:N:G",
    ),
    "draft_window": _spec(
        int,
        "Tokens of a text that a draft model remembers: the first and the latest.",
        default="what it was trained on",
    ),
    "drafter": _spec(
        str,
        "What drafts: ngram or lookahead (need no model), model, self (a copy of the target made by specdec draft), "
        "none; ngram+model and model<ngram combine two (specdec drafters). auto: ngram, then the model, if any.",
        default="auto",
        autocompletion=completion.drafters,
    ),
    "ngram_corpus": _spec(
        list[Path],
        "A file or folder, such as your code base, that ngram also drafts from; may be repeated.",
        metavar="PATH",
    ),
    "accept": _spec(
        str,
        "How drafts are accepted: rejection (accepts most), or coupled and match (with a seed, the very text of the "
        "target alone); typical is LOSSY: faster, another distribution.",
        default="coupled with --seed or --bitwise, else rejection",
        autocompletion=completion.rules,
    ),
    "bitwise": _spec(
        bool, "Draft only within passes that round alike here, so that the text is the target's own to the bit."
    ),
    "temp": _sampling(float, "Temperature; 0 is greedy.", default="0"),
    "top_k": _sampling(int, "Keep the k likeliest tokens; 0 is off.", default="40"),
    "top_p": _sampling(float, "Keep the likeliest tokens up to this sum; 1 is off.", default="0.95"),
    "min_p": _sampling(float, "Drop tokens below this share of the likeliest; 0 is off.", default="0.05"),
    "repeat_penalty": _sampling(float, "Penalty for recent tokens; 1 is off.", default="1"),
    "frequency_penalty": _sampling(float, "Penalty for each recent occurrence.", default="0"),
    "presence_penalty": _sampling(float, "Penalty for having occurred recently.", default="0"),
    "repeat_last_n": _sampling(int, "How many tokens back the penalties look.", default="64"),
    "seed": _sampling(int, "Seed for sampling.", "-s", "random"),
    "ctx": _machine(int, "Context in tokens.", "-c", "what prompt and -n need"),
    "threads": _machine(int, "CPU threads.", "-t", "the physical cores"),
    "threads_draft": _machine(int, "CPU threads of the draft model.", "-td", "as --threads"),
    "gpu_layers": _machine(int, "Target layers on the GPU; -1 is all.", "-ngl", "-1"),
    "gpu_layers_draft": _machine(int, "Draft layers on the GPU; -1 is all.", "-ngld", "-1"),
    "device": _machine(
        str,
        "Devices of the target by their names in specdec doctor; none is the CPU.",
        default="all GPUs",
        metavar="NAME[,NAME...]",
    ),
    "device_draft": _machine(
        str, "Devices of the draft model.", default="the GPU with most memory free", metavar="NAME[,NAME...]"
    ),
    "tensor_split": _machine(
        str, "The target's shares of several devices.", default="by their free memory", metavar="N,N[,N...]"
    ),
    "rpc": _machine(
        str,
        "Machines that compute the target, by the addresses of their servers (specdec rpc-server).",
        metavar="HOST:PORT[,HOST:PORT...]",
    ),
    "rpc_insecure": _machine(bool, "Connect to servers outside private networks, too."),
}
ALL = tuple(_OPTIONS)
"""The names of all options of settings."""

Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="System message, for models with a chat template.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Report everything that is known of the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _annotation(name: str) -> Any:
    """The type of one option of settings, as Typer takes it."""
    kind, short, arguments = _OPTIONS[name]
    flags = (f"--{name.replace('_', '-')}", short) if short else ()
    return Annotated[kind | None, typer.Option(*flags, envvar=f"SPECDEC_{name.upper()}", **arguments)]


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take options of settings: it gets what was given of them as its first argument, a `Given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        hints = get_type_hints(command, include_extras=True)
        parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
        parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name))
            for name in names
        ]

        @wraps(command)
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
    typed = frozenset(
        name for name in flags if getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE"
    )
    flags = {name: None if value in ((), []) else value for name, value in flags.items()}
    profile: str | None = flags.pop("profile", None)
    if typed & {"profile", "target"}:
        flags |= {name: None for name in ("target", "draft") if name not in typed}
        profile = profile if "profile" in typed else None
    return Given(profile, flags, typed, context.get_help)
