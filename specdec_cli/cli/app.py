"""The command line's root: which commands there are. A command is imported when it is called."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specdec_cli import __version__
from specdec_cli.cli.error_reporting import reporting
from specdec_cli.cli.signals import ended_by_signals
from specdec_cli.decoding.errors import UsageError
from specdec_cli.display.terminal import neutralise_streams

COMMANDS = {
    "demo": "Race a small pair that comes with specdec, with and without drafts.",
    "run": "Answer one prompt.",
    "edit": "Change a file by instruction.",
    "chat": "Chat with a model.",
    "serve": "Start a server with OpenAI's API and a chat page.",
    "batch": "Answer a file of requests, several at a time.",
    "rpc-server": "Compute part of a model for another machine.",
    "pull": "Download a model pair.",
    "check": "Compare two models' tokenizers, sizes and memory.",
    "ls": "List the model pairs.",
    "show": "Show details of a pair.",
    "rm": "Delete a pulled pair.",
    "replay": "Replay a recorded run.",
    "compare": "Measure drafters and settings against the target alone.",
    "tune": "Measure a pair on this machine and predict its speedup.",
    "export": "Print the settings of a pair for another engine.",
    "draft": "Make a draft model or heads for a target.",
    "drafters": "List the drafters and when each helps.",
    "doctor": "Check the installation.",
}
"""The first line of each command's help; the docstring of the command has the rest."""
_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""Within a paragraph."""
_LETTERS = re.compile(r"-[A-Za-z]{2}")


@cache
def load(name: str) -> Any:
    """Import a command: the function or Typer of its name in the file of its name."""
    module = name.replace("-", "_")
    command = getattr(import_module(f"specdec_cli.cli.{module}"), module)
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(command)
        command = alone
    found = typer.main.get_command(command)
    found.help = f"{COMMANDS[name]}\n\n{found.help or ''}".strip()
    for each in (found, *getattr(found, "commands", {}).values()):
        each.help = _LINE_BREAK.sub(" ", each.help or "")  # Typer would keep those of the docstring
    return found


def _refuse_glued(command: Any, arguments: Sequence[str]) -> None:
    """Raise UsageError for -fa if only -f is an option with a value: -n20 means -n 20, but -fa is a mistake.

    command: Typer's. The arguments of a group begin with the name of one of its commands.
    """
    if arguments and (inner := getattr(command, "commands", {}).get(arguments[0])):
        command, arguments = inner, arguments[1:]
    options = {name: option for option in command.params for name in option.opts if name.startswith("-")}
    valued = {name for name, option in options.items() if not option.is_flag}
    before = ""
    for argument in arguments:
        if argument == "--":
            return
        is_value = before in valued
        before = "" if is_value else argument
        if is_value or not _LETTERS.match(argument) or argument.partition("=")[0] in options:
            continue
        name = max((short for short in valued if argument.startswith(short)), key=len, default=None)
        if name:
            value = argument.removeprefix(name)
            raise UsageError(f"there is no option {argument}", f"-h lists all options. Did you mean {name} {value}?")


class _Commands(TyperGroup):
    def main(self, *args, **options):  # type: ignore[no-untyped-def]  # as below
        """Parse and run a command line, and exit. Output goes through streams that neutralise control characters."""
        neutralise_streams()
        if not os.environ.get("TERMINAL_WIDTH", "0").isdecimal():
            del os.environ["TERMINAL_WIDTH"]  # Typer would fail to import
        with ended_by_signals(), reporting():
            code = super().main(*args, **{**options, "standalone_mode": False})
            sys.stdout.flush()  # a full disk shows now, or never
            sys.exit(code)

    def invoke(self, ctx):  # type: ignore[no-untyped-def]  # Typer's vendored Click has no public Context type
        """Run a command. Otherwise Typer itself would report some errors."""
        with reporting():
            return super().invoke(ctx)

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # as above
        """The command and its arguments. Raises UsageError for letters attached to a short option.

        Completion must not fail: there, letters are accepted, and an unknown command is None.
        """
        name, command, rest = super().resolve_command(ctx, args)
        command = command and load(str(name))
        if not ctx.resilient_parsing:
            _refuse_glued(command, rest)
        return name, command, rest


app = typer.Typer(
    name="specdec",
    cls=_Commands,
    help="Speculative decoding for local GGUF models: same text, faster where drafting pays.",
    epilog="Start here:  specdec demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of specdec itself."""


for name, line in COMMANDS.items():
    app.command(name, help=line)(lambda: None)  # `load` puts the command itself in its place
