"""`specdec demo`: ten seconds that show what speculative decoding does, on a pair that comes with specdec."""

from __future__ import annotations

import sys

import typer

from specdec_cli.display.status_line import status_line

_NEXT = """\
What to try next:
  specdec run "def median(values):"        an answer of your own, every token in its colour
  specdec pull qwen2.5-coder-1.5b          a real pair, 1.5 GB; specdec ls lists others
  specdec compare -m TARGET -md DRAFT      what a pair of yours brings, with an interval"""


def demo() -> None:
    """Race the target alone against the target with drafts, on a small pair that comes with specdec."""
    from rich.console import Console

    from specdec_cli.display import race_view
    from specdec_cli.engine.config_layers import resolve
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.race import PAIR, Race, unfinished_file
    from specdec_cli.llama.interrupt import Interrupt

    console = Console(highlight=False)
    settings = resolve(PAIR, {})
    with Interrupt() as interrupt:
        with status_line("loading", silent=False):
            engine = Engine(settings, interrupt)
        with engine:
            race = Race(engine, unfinished_file())
            with race_view.RaceView(console, race.rounds, "library.py, continued") as view:
                for drafts, event in race:
                    view.show(drafts, event)
            if not race.finished:
                print("specdec: interrupted", file=sys.stderr)
                raise typer.Exit(interrupt.exit_code)
            with status_line("predicting for other machines", silent=False):
                result = race.result()
        console.print(race_view.result(result))
        typer.echo(f"\n{_NEXT}")
