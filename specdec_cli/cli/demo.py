"""`specdec demo`: shows in ten seconds what speculative decoding does, with the bundled pair."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic

from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.display.terminal import SafeConsole, status_line

_WHOLE_S = 14.0
"""Seconds after the start of the command at which the race ends at the latest."""


def demo() -> None:
    until = monotonic() + _WHOLE_S
    with interruptible() as interrupt, ExitStack() as stack:
        with status_line("finding settings that pay on this processor", silent=False):
            from specdec_cli.display import race_view
            from specdec_cli.measure import race as racing

            console = SafeConsole()
            race = stack.enter_context(racing.best_race(interrupt, until))
        with race_view.RaceView(console, str(race.arrangement)) as view:
            for drafts, event in race:
                view.show(drafts, event)
        console.print(race_view.result(race.result()))
        console.print(f"  {race.conditions}", style="dim")
        console.print()
        console.print(race_view.next_steps())
