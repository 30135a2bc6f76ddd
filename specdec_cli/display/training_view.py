"""A training as it goes, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from specdec_cli.display.grids import lines_table, note_lines
from specdec_cli.display.safe_console import SafeConsole
from specdec_cli.display.status_line import status_line
from specdec_cli.display.theme import can_paint
from specdec_cli.user_files import format_bytes

if TYPE_CHECKING:
    from specdec_cli.make_drafts.draft_figures import DraftFigures
    from specdec_cli.make_drafts.recipe import TrainingStep
    from specdec_cli.make_drafts.train import DraftTrainingResult


class TrainingView(ExitStack):
    """Shows on stderr how far a training is: a bar on a terminal, else a line for each tenth of a stage."""

    def __init__(self, silent: bool) -> None:
        super().__init__()
        self._silent = silent
        self._stage = ""
        self._bar: Progress | None = None

    def recording(self, done: int, wanted: int, seconds_left: float) -> None:
        left = f", about {_duration(seconds_left)} left" if seconds_left > 1 else ""
        self._show(f"the target writes {wanted:,} tokens", done, wanted, f"{done:,} tokens{left}")

    def planned(self, steps: int, step_s: float, bytes_: int) -> None:
        self._end()
        memory = f", and all of it {format_bytes(bytes_)} of memory" if bytes_ else ""
        self._print(f"a step takes {step_s:.2f} s{memory}: {steps:,} steps in {_duration(steps * step_s)}")

    def training(self, progress: TrainingStep) -> None:
        agreed = " ".join(f"{share:.0%}" for share in progress.best)
        said = f"loss {progress.loss:.2f}" + (f", agrees {agreed}" if agreed else "")
        left = f"{said}, about {_duration(progress.seconds_left)} left"
        self._show(f"training, {progress.steps:,} steps", progress.step, progress.steps, left)

    def stopped(self, out: str) -> None:
        self._end()
        self._print(f"{out} holds the best so far")

    def measuring(self, what: str) -> None:
        self._end()
        self.enter_context(status_line(f"measuring {what}", self._silent))

    def _show(self, stage: str, done: int, total: int, said: str) -> None:
        if self._stage != stage:
            self._end()
            self._stage = stage
            self._tenths = 0
            if self._silent or not can_paint(sys.stderr):
                self._print(stage)
                return
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[said]}", markup=False),
                console=SafeConsole(stderr=True),
                transient=True,
            )
            self.enter_context(self._bar)
            self._task = self._bar.add_task(stage, total=total, said=said)
        if self._bar:
            self._bar.update(self._task, completed=min(done, total), said=said)
        elif (tenths := 10 * done // max(total, 1)) > self._tenths:
            self._tenths = tenths
            self._print(f"  {tenths * 10}%: {said}")

    def _end(self) -> None:
        self._stage, self._bar = "", None
        self.close()

    def _print(self, text: str) -> None:
        if not self._silent:
            print(text, file=sys.stderr, flush=True)


def training_tables(result: DraftTrainingResult) -> list[RenderableType]:
    """A trained draft: what it is, how much of its drafts was accepted, and what that comes to."""
    lines = {
        "draft": result.out,
        "for": result.target,
        "size": f"{format_bytes(result.bytes)}; the target has {format_bytes(result.target_bytes)}",
        "learnt from": f"{result.texts:,} answers of the target, in {result.steps:,} steps",
        "took": _duration(result.seconds),
    }
    drafts = [each for each in (result.before, result.after) if each]
    return [
        lines_table(lines),
        *note_lines(result.notes),
        Text("\nDrafts of four tokens on prompts that training did not see, greedy:", style="dim"),
        _acceptance(drafts),
        Text("\nWhat they cost, and the speed to be expected:", style="dim"),
        _costs(drafts),
    ]


def _acceptance(drafts: Sequence[DraftFigures]) -> Table:
    """A line for each category and draft: how many drafts stood up to each place."""
    places = max(len(category.by_place) for draft in drafts for category in draft.categories)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("prompts", "draft", "tokens/pass", *(f"place {place + 1}" for place in range(places))):
        table.add_column(name, justify="left" if name in ("prompts", "draft") else "right")
    for number, category in enumerate(drafts[-1].categories):
        name = category.category
        for draft in drafts:
            row = draft.categories[number]
            table.add_row(name, draft.draft, f"{row.tokens_per_pass:.2f}", *(f"{share:.0%}" for share in row.by_place))
            name = ""
    return table


def _costs(drafts: Sequence[DraftFigures]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("draft", "a draft token", "of a target token", *(each.machine for each in drafts[0].expected)):
        table.add_column(name, justify="right" if name != "draft" else "left")
    for draft in drafts:
        speeds = [
            f"{each.speedup:.2f}x (-k {each.draft_tokens})" if each.draft_tokens else "does not pay"
            for each in draft.expected
        ]
        share = f"{draft.drafted_s / draft.target_s:.0%}"
        table.add_row(draft.draft, f"{draft.drafted_s * 1000:.3g} ms", share, *speeds)
    return table


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
