"""A line on a terminal while something takes long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specdec_cli.display.theme import can_paint


@contextmanager
def status_line(what: str, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if it is a terminal, what takes long, and erase it afterwards.

    Yields a function that shows another text instead.
    """
    shown = not silent and can_paint(sys.stderr)

    def show(text: str) -> None:
        if shown:
            print(text, end="", file=sys.stderr, flush=True)

    show(f"{what} ...")
    try:
        yield lambda now: show(f"\r\x1b[K{now} ...")
    finally:
        show("\r\x1b[K")
