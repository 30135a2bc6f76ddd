"""The options that several commands share, each defined once, and their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion
from specdec_cli.cli.output import print_parts
from specdec_cli.decoding.options import Option
from specdec_cli.settings.options import OPTIONS, TYPE_NAMES

if TYPE_CHECKING:
    from specdec_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Given:
    """The settings that a command was given.

    profile: the name of the pair. flags: values by the names of settings, None if not given. typed: the names that were
    on the command line itself, not in a SPECDEC_* variable. help: the command's help.
    """

    profile: str | None
    flags: dict[str, Any]
    typed: frozenset[str]
    help: Callable[[], str]

    def settings(self) -> Settings:
        """The settings from all layers. Raises UsageError, also for an option that nothing uses."""
        from specdec_cli.pairs.config_layers import require_used, resolve

        settings = resolve(self.profile, self.flags)
        require_used(self.typed, [settings])
        return settings

    def chosen(self, name: str) -> Any:
        """An option from the command line, a variable or config.yaml; None if they leave it to the profile."""
        from specdec_cli.pairs.config_layers import merged

        found = merged(self.profile, self.flags)
        return found.given.get(name, found.config.get(name))


_COMPLETIONS = {
    **dict.fromkeys(("target", "draft", "draft_small"), completion.models),
    **{"profile": completion.pairs, "drafter": completion.drafters, "accept": completion.rules},
}
_PROFILE = Option(
    None,
    "Model pair by name (see specdec ls).\nIt sets both models. Default: the bundled demo.",
    common=True,
    panel="Models",
    short="-p",
)
_OPTIONS = {"profile": _PROFILE, **OPTIONS}
_PYTHON_TYPES = {"bool": bool, "int": int, "float": float}
_PANELS = (None, "Models", "Speculation", "Sampling", "Machine")
ALL = tuple(sorted(_OPTIONS, key=lambda name: _PANELS.index(_OPTIONS[name].panel)))
"""The names of all options of settings."""

target = partial(typer.Option, "--target", "-m", autocompletion=completion.models)
draft = partial(typer.Option, "--draft", "-md", autocompletion=completion.models)
hardware = partial(typer.Option, metavar="HARDWARE", autocompletion=completion.machines)
"""Options with a help of their own in each command."""

Raw = Annotated[bool, typer.Option("--raw", hidden=True, help="Send the prompt as is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="System message.")]
Prediction = Annotated[
    str | None,
    typer.Option(
        help="Text that the answer mostly repeats, such as a file to change.",
        metavar="FILE|TEXT",
        rich_help_panel="Speculation",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Report all details of the run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _annotation(name: str, default: str | None) -> Any:
    about, kind = _OPTIONS[name], TYPE_NAMES.get(name, "str")
    default = default or about.default_text
    flags = (f"--{(about.flag or name).replace('_', '-')}", about.short) if about.short or about.flag else ()
    option = typer.Option(
        *filter(None, flags),
        help=about.help.partition("\n")[0] + (f" \\[default: {default}]" if default else ""),
        hidden=not about.common,
        show_envvar=False,
        rich_help_panel=about.panel,
        metavar=about.metavar,
        autocompletion=_COMPLETIONS.get(name),
        envvar=[f"SPECDEC_{each.upper()}" for each in dict.fromkeys((name, about.flag)) if each],
    )
    if kind.startswith("tuple"):
        several = list[Path] if about.metavar == "PATH" else list[str]  # Typer splits paths in a variable as in $PATH
        return Annotated[several | None, option]
    one: Any = str if about.default == "auto" else _PYTHON_TYPES.get(kind, str)
    return Annotated[one | None, option]


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all options and their whole texts."""
    if not wanted:
        return
    parameters: list[Any] = context.command.params
    before = [(parameter, parameter.hidden, parameter.help) for parameter in parameters]
    for parameter in parameters:
        parameter.hidden = False
        if about := _OPTIONS.get(parameter.name or ""):
            first, *more = about.help.split("\n")
            parameter.help = (parameter.help or "").replace(first, " ".join([first, *more]), 1)
    print(context.get_help())
    for parameter, hidden, help_ in before:  # one program may run several commands
        parameter.hidden, parameter.help = hidden, help_
    raise typer.Exit


_HelpAll = Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")]


def takes(*names: str, **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options of settings to a command, whose first argument is then a `Given`. defaults: in words, for its help,
    where they aren't those of all commands.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(context: typer.Context, help_all: bool, **arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in names}
            given = _given(context, flags)
            if {"profile", "target"} <= given.typed and not (arguments.get("json_") or arguments.get("quiet")):
                _name_draft(given)
            command(given, **arguments)

        # Before Python 3.11, `typing.get_type_hints` hides an annotation whose default is None from Typer.
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        option = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        more = [option(name, default=None, annotation=_annotation(name, defaults.get(name))) for name in names]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        return with_parameters(
            command, run, [context, *own, option("help_all", default=False, annotation=_HelpAll), *more]
        )

    return decorate


def with_parameters(
    command: Callable[..., Any], run: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """`run` with the name and the help of a command, and with parameters for Typer."""
    run = wraps(command)(run)
    del run.__wrapped__  # otherwise Typer would use its signature
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _name_draft(given: Given) -> None:
    """-p and -m together: say which draft goes with the target."""
    from specdec_cli.pairs.config_layers import merged

    settings = merged(given.profile, given.flags).settings
    if settings.draft and settings.cascade.needs_model and "draft" not in given.typed:
        name = settings.draft.rpartition("/")[2]
        print_parts(f"note: -m replaces the target of {given.profile}; its draft stays: {name}", stderr=True)


def _given(context: typer.Context, flags: dict[str, Any]) -> Given:
    """Models or a pair on the command line override those in SPECDEC_* variables, so the variables are left out."""
    typed = frozenset(
        name for name in flags if getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE"
    )
    flags = {name: None if value in ((), []) else value for name, value in flags.items()}
    profile: str | None = flags.pop("profile", None)
    if typed & {"profile", "target"}:
        flags |= {name: None for name in ("target", "draft") if name not in typed}
        profile = profile if "profile" in typed else None
    return Given(profile, flags, typed, context.get_help)
