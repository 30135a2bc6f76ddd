"""A value glued to a short option: -n20 is -n 20, but -fa is a slip for an option that there is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from specdec_cli.decoding.errors import UsageError

_LETTERS = re.compile(r"-[A-Za-z]{2}")


def refuse_glued(command: Any, arguments: Sequence[str]) -> None:
    """Raise UsageError on -fa where only -f is an option that takes a value, before it is read as -f a.

    command: Typer's, whose arguments these are; those of a group begin with the name of one of its commands.
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
            raise UsageError(f"there is no option {argument}", f"-h lists all; a value is set apart: {name} {value}")
