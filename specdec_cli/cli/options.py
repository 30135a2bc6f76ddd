"""The options that several commands share, each spelt once, and what was given of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specdec_cli.cli import completion
from specdec_cli.decoding.options import Option
from specdec_cli.engine.options import KINDS, OPTIONS


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


_COMPLETIONS = {
    **dict.fromkeys(("target", "draft", "draft_small"), completion.models),
    **{"profile": completion.pairs, "drafter": completion.drafters, "accept": completion.rules},
}
_PROFILE = Option(
    None, "A named pair (specdec ls); sets both models. Default: the bundled demo.", panel="Models", short="-p"
)
_OPTIONS = {"profile": _PROFILE, **OPTIONS}
_KINDS = {"bool": bool, "int": int, "float": float}
ALL = tuple(_OPTIONS)
"""The names of all options of settings."""

Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="System message, for models with a chat template.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Report everything that is known of the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _annotation(name: str) -> Any:
    """The type of one option of settings, as Typer takes it."""
    about, kind = _OPTIONS[name], KINDS.get(name, "str")
    default = f" \\[default: {about.default_text}]" if about.default_text else ""
    flags = (f"--{(about.flag or name).replace('_', '-')}", about.short) if about.short or about.flag else ()
    option = typer.Option(
        *filter(None, flags),
        help=about.help + default,
        rich_help_panel=about.panel,
        metavar=about.metavar,
        autocompletion=_COMPLETIONS.get(name),
        envvar=[f"SPECDEC_{each.upper()}" for each in dict.fromkeys((name, about.flag)) if each],
    )
    if kind.startswith("tuple"):
        several = list[Path] if about.metavar == "PATH" else list[str]  # paths in a variable are separated as in $PATH
        return Annotated[several | None, option]
    one: Any = str if about.default == "auto" else _KINDS.get(kind, str)
    return Annotated[one | None, option]


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
