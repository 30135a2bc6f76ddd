"""A line on a terminal while something takes its time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(what: str, silent: bool) -> Iterator[None]:
    """Say on stderr, if it is a terminal, what takes its time, and take it back afterwards."""
    shown = not silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
