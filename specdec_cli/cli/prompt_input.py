"""Reads the prompt (argument, file, pipe), the constraints of the answer, and escapes in stop strings."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from specdec_cli.decoding.errors import UsageError
from specdec_cli.user_files import decoded

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar import Grammar
    from specdec_cli.settings.settings import Settings

_MAX_BYTES = 1 << 26
"""The longest prompt: a device such as /dev/zero never ends."""


def gather(argument: str | None, file: Path | None) -> str | None:
    """The prompt's parts, joined by line breaks: the argument, then the file, then the piped text.

    Line breaks at the end of a file or a pipe are dropped, because editors and `echo` add them. An argument or a file
    named "-" is standard input, even if that's a terminal. None if there's nothing to read. Raises UsageError for an
    unreadable file or an empty prompt.
    """
    asked = "-" in (argument, str(file))
    parts = [None if argument == "-" else argument, None if file is None or str(file) == "-" else read_file(file)]
    text = _read(sys.stdin.buffer, "standard input") if asked or _is_piped() else ""
    parts.append(text.rstrip("\r\n") if text or asked else None)
    given = [part for part in parts if part is not None]
    if not given:
        return None
    prompt = "\n".join(part for part in given if part)
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'Give one: specdec run "def median(values):"')
    return prompt


def read_file(file: Path, what: str = "prompt file") -> str:
    """The text of a file without line breaks at its end. Raises UsageError."""
    try:
        with file.open("rb") as opened:
            return _read(opened, str(file), file).rstrip("\r\n")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        fix = "Check its path and permissions."
        raise UsageError(f"cannot read the {what} {file}: {reason}", fix) from None


def asked_prediction(given: str | None, settings: Settings) -> str | None:
    """A prediction of the answer: the text itself if it contains white space, otherwise the path of a file. Raises
    UsageError if the file can't be read, or if nothing drafts from a prediction.
    """
    if given and settings.drafter != "none" and not settings.cascade.reads_texts:
        raise UsageError(f"{settings.drafter} can't draft from a prediction", "Use a drafter with ngram.")
    if given is None or any(map(str.isspace, given)):
        return given
    return read_file(Path(given), "prediction")


def asked_grammar(json_schema: str | None, grammar: Path | None, regex: str | None) -> Grammar | None:
    """The constraint that the options ask for. Raises UsageError if there are several, or one that can't be used."""
    from specdec_cli.constraints.grammar import Grammar

    if sum(each is not None for each in (json_schema, grammar, regex)) > 1:
        raise UsageError("an answer can have only one constraint", "Give one of --json-schema, --grammar and --regex.")
    chosen = None
    if json_schema is not None:
        is_text = json_schema.lstrip()[:1] in ("{", "[")
        chosen = Grammar.json_schema(json_schema if is_text else read_file(Path(json_schema), "JSON schema"))
    elif grammar is not None:
        chosen = Grammar.rules(read_file(grammar, "grammar"))
    elif regex is not None:
        chosen = Grammar.regex(regex)
    if chosen is not None:
        chosen.compiled()
    return chosen


def _is_piped() -> bool:
    """Whether text is piped or redirected into standard input, which is then no terminal and no device."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # not a real file
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)


def unescaped(text: str) -> str:
    r"""A stop string with the escapes \n, \t and \\ replaced; other backslashes stay."""
    return re.sub(r"\\[nt\\]", lambda escape: {"n": "\n", "t": "\t", "\\": "\\"}[escape[0][1]], text)


def _read(file: BinaryIO, source: str, path: Path | None = None) -> str:
    """The text of an open file. Raises UsageError if it is too long, or isn't text, OSError if it can't be read."""
    data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{source} is too long for a prompt: more than {_MAX_BYTES >> 20} MiB", "Use a part of it.")
    return decoded(data, source, path)
