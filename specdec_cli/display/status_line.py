"""A line on a terminal while something takes its time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def status_line(what: str, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if it is a terminal, what takes its time, and remove it afterwards.

    Yields a function that shows something else instead, such as how far it has come.
    """
    shown = not silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(now: str) -> None:
        if shown:
            print(f"\r\x1b[K{now} ...", end="", file=sys.stderr, flush=True)

    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield say
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
