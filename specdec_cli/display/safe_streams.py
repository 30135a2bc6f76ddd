"""The way that text takes out of the process: what a terminal would obey is replaced by signs that it shows.

Texts come from model files, recordings, the Hub, other packages and the names of files. So nothing that is printed is
trusted: the streams are wrapped, once, and `SafeConsole` does the same for what Rich prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

_UNSAFE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    # Marks, overrides and isolates of direction, and other ends of lines, could make one line look like another.
    **dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    # No valid text: halves of characters, which names of files may hold, and what XML forbids.
    **dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
}
_LIKE_A_FILE = {"flush", "isatty", "fileno", "encoding", "errors", "closed"}


def safe(text: str) -> str:
    """The text, as long, with each character that a terminal would obey replaced; line breaks and tabs stay."""
    return text if text.isprintable() else text.translate(_UNSAFE)


class SafeStream:
    """Stands in the place of stdout or stderr. It gives no way to write bytes."""

    def __init__(self, raw: TextIO) -> None:
        self.rich_proxied_file = raw  # by this name Rich finds the stream that it sends its own codes to

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(safe(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name in _LIKE_A_FILE:
            return getattr(self.rich_proxied_file, name)
        raise AttributeError(name)


def neutralise_streams() -> None:
    """Wrap stdout and stderr, for good: even a traceback may quote a text."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), SafeStream):
            setattr(sys, name, SafeStream(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for codes of our own, and for answers where they do not go to a terminal."""
    return cast(TextIO, getattr(stream, "rich_proxied_file", stream))
