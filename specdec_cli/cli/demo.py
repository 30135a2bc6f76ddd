"""`specdec demo`: ten seconds that show what speculative decoding does, on a pair that comes with specdec."""

from __future__ import annotations

from contextlib import ExitStack

from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.display.status_line import status_line

_NEXT = """\
What to try next:
  specdec pull qwen2.5-coder-1.5b                             a real pair, 1.5 GB; specdec ls lists others
  specdec run -p qwen2.5-coder-1.5b "Explain quicksort."      an answer, every token in its colour
  specdec compare -p qwen2.5-coder-1.5b --prompts code        what it brings on this machine, with an interval"""


_TITLE = "library.py, continued by a model of 9 M weights, draft 0.9 M, one core"


def demo() -> None:
    """Race the target alone against the target with drafts, on a small pair that comes with specdec."""
    from specdec_cli.display import race_view
    from specdec_cli.display.safe_console import SafeConsole
    from specdec_cli.engine import race as racing

    console = SafeConsole()
    with interruptible() as interrupt, ExitStack() as stack:
        with status_line("loading", silent=False):
            engine = stack.enter_context(racing.engine_of(racing.settings(), interrupt))
        race = racing.Race(engine, racing.unfinished_file())
        with race_view.RaceView(console, race.rounds, _TITLE) as view:
            for drafts, event in race:
                view.show(drafts, event)
        if not race.finished:
            raise Interrupted
        with status_line("predicting for other machines", silent=False):
            result = race.result()
        console.print(race_view.result(result))
        print(f"\n{_NEXT}")
