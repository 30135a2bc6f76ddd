"""Make docs/live.svg: the live view of a real run of the pair of `specdec demo`, stopped in the middle.

python docs/picture.py
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli import SamplingParams, Step
from specdec_cli.display import live
from specdec_cli.engine.engine import one_session
from specdec_cli.measure import race

WIDTH, HEIGHT = 88, 24


def screen_at(stop_after: int) -> pyte.Screen:
    """The terminal after this many steps of a run, at the next step whose draft was accepted in part."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    console = Console(
        file=StringIO(), force_terminal=True, width=WIDTH, height=HEIGHT, color_system="standard", _environ={}
    )
    with one_session(race.settings(race.Arrangement("model", 6, widened=False))) as session:
        display = live.LiveDisplay(console, session.settings.max_tokens)
        for event in session.stream(race.PROMPT, SamplingParams(temperature=0.7, seed=1), raw=True):
            display.show(event)
            partly = isinstance(event, Step) and 0 < event.accepted < len(event.drafted)
            if isinstance(event, Step) and event.index >= stop_after and partly:
                display._repaint()
                break
    stream.feed(console.file.getvalue())  # type: ignore[attr-defined]
    return screen


def as_text(screen: pyte.Screen) -> list[Text]:
    """The rows of an emulated terminal, styles included."""
    names = {"brown": "yellow"}
    rows = []
    for y in range(screen.lines):
        row = Text(end="")
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            colour = None if cell.fg == "default" else names.get(cell.fg, cell.fg)
            style = Style(color=colour, bold=cell.bold, underline=cell.underscore, strike=cell.strikethrough)
            row.append(cell.data or " ", style)
        row.rstrip()
        rows.append(row)
    while rows and not rows[-1].plain:
        rows.pop()
    return rows


def main() -> None:
    console = Console(record=True, width=WIDTH, file=StringIO(), highlight=False, force_terminal=True)
    console.print("$ specdec run -m target.gguf -md draft.gguf -k 6 --temp 0.7 --seed 1 -f stack.py", style="bold")
    for row in as_text(screen_at(stop_after=24)):
        console.print(row, no_wrap=True)
    svg = console.export_svg(title="specdec", unique_id="live")
    # The web font that Rich asks for would make the picture call home; any monospace font will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    (Path(__file__).parent / "live.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
