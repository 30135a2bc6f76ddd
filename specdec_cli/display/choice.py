"""Which display an answer gets: painted on a terminal that can, else plain text."""

import os
import sys

from rich.console import Console

from specdec_cli.display.live import LiveDisplay
from specdec_cli.display.plain import PlainDisplay
from specdec_cli.display.theme import can_paint


def on_stdout(max_tokens: int, quiet: bool = False) -> LiveDisplay | PlainDisplay:
    """The display for stdout. quiet: plain text even on a terminal. NO_COLOR and FORCE_COLOR are obeyed."""
    console = Console(highlight=False)
    if can_paint(sys.stdout) and not quiet:
        return LiveDisplay(console, max_tokens)
    coloured = bool(os.environ.get("FORCE_COLOR")) and not console.no_color and not quiet
    return PlainDisplay(sys.stdout, neutralise=sys.stdout.isatty(), coloured=coloured)
