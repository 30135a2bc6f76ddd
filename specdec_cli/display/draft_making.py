"""Shows the progress of making a draft, by copying or training, and the result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from specdec_cli.display.parts import duration, rough_duration
from specdec_cli.display.tables import lines_table, note_lines, plain_table
from specdec_cli.display.terminal import SafeConsole, can_paint, status_line
from specdec_cli.make_drafts.draft_copy import CopyProgress
from specdec_cli.user_files import format_bytes

if TYPE_CHECKING:
    from specdec_cli.llama.quantize import Unfit
    from specdec_cli.make_drafts.draft_copy import DraftCopyResult, SearchStep
    from specdec_cli.make_drafts.draft_figures import DraftFigures
    from specdec_cli.make_drafts.recipe import TrainingStep
    from specdec_cli.make_drafts.training_run import DraftTrainingResult


class DraftView(ExitStack, CopyProgress):
    """Shows on stderr how far the making of a draft is: a bar on a terminal, else a line for each tenth of a stage."""

    def __init__(self, silent: bool) -> None:
        super().__init__()
        self._silent = silent
        self._painted = not silent and can_paint(sys.stderr)
        self._stage = ""
        self._tenths = 0
        self._bar: Progress | None = None

    def copying(self, name: str, done: int, total: int) -> None:
        """`done` of a file's `total` tensors have been written. That takes seconds, so only a terminal shows it."""
        if self._painted:
            self._show(f"writing {name}", done, total, f"{done}/{total} tensors")
        if done == total:
            self._end()

    def planned_copy(self, bytes_: int, target_bytes: int, unfit: Sequence[Unfit]) -> None:
        """The size of a copy, and what its tensors become where the type doesn't fit them."""
        for got, tensors in _by_type(unfit).items():
            columns = " or ".join(f"{columns:,}" for columns in sorted({tensor.columns for tensor in tensors}))
            types = " or ".join(sorted({tensor.wanted for tensor in tensors}))
            what = f"{len(tensors)} tensors become" if len(tensors) > 1 else "1 tensor becomes"
            self._print(f"{what} {got}, because rows of {columns} values don't fit {types}")
        self._print(f"the copy will have {_size(bytes_, target_bytes)}")

    def searching(self, layers: int, keep: int, prompts: int, tokens: int, trials: int, seconds: float) -> None:
        """What a search will do, and how long it may take."""
        self._print(
            f"{layers} layers, {keep} to keep: {trials} trials on {prompts} of the target's answers ({tokens} tokens), "
            f"about {rough_duration(seconds)}\nlayers  agreement       size  kept"
        )

    def dropped(self, step: SearchStep, kept: str, bytes_: int) -> None:
        """A line of a search's table. kept: the layers that are left, as ranges."""
        note = "  (the target itself, in other batches)" if step.dropped is None else ""
        self._print(f"{len(step.layers):6}  {step.agreement:9.1%}  {format_bytes(bytes_):>9}  {kept}{note}")

    def recording(self, done: int, wanted: int, seconds_left: float) -> None:
        left = f", about {rough_duration(seconds_left)} left" if seconds_left > 1 else ""
        self._show(f"the target writes {wanted:,} tokens", done, wanted, f"{done:,} tokens{left}")

    def planned(self, steps: int, step_s: float, bytes_: int) -> None:
        self._end()
        memory = f", with {format_bytes(bytes_)} of memory" if bytes_ else ""
        self._print(f"a step takes {step_s:.2f} s: {steps:,} steps in {rough_duration(steps * step_s)}{memory}")

    def training(self, progress: TrainingStep) -> None:
        agreed = " ".join(f"{share:.0%}" for share in progress.best)
        said = f"loss {progress.loss:.2f}" + (f", agrees {agreed}" if agreed else "")
        left = f"{said}, about {rough_duration(progress.seconds_left)} left"
        self._show(f"training, {progress.steps:,} steps", progress.step, progress.steps, left)

    def stopped(self, out: str) -> None:
        self._end()
        self._print(f"{out} holds the best so far")

    def measuring(self, what: str) -> None:
        self.waiting(f"measuring {what}")

    def waiting(self, what: str) -> None:
        self._end()
        self.enter_context(status_line(what, self._silent))

    def _show(self, stage: str, done: int, total: int, said: str) -> None:
        if self._stage != stage:
            self._end()
            self._stage, self._tenths = stage, 0
            if not self._painted:
                self._print(stage)
                return
            columns = (BarColumn(bar_width=None), TextColumn("{task.fields[said]}", markup=False), TimeElapsedColumn())
            name = TextColumn("{task.description}", markup=False)
            self._bar = Progress(name, *columns, console=SafeConsole(stderr=True), transient=True)
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
            console = SafeConsole(stderr=True)
            console.print(text, soft_wrap=not console.file.isatty())


def copy_tables(draft: DraftCopyResult) -> RenderableType:
    pruned = draft.kept and len(draft.layers) < (draft.of or 0)
    others = ", ".join(f"{len(tensors)} are {got}" for got, tensors in _by_type(draft.unfit).items())
    lines = {
        "draft": draft.out,
        "target": draft.target,
        "layers": f"{draft.kept} ({len(draft.layers)} of {draft.of})" if pruned else "",
        "type": draft.type + (f" by name; of its tensors {others}" if others else ""),
        "agreement": "" if draft.agreement is None else f"{draft.agreement:.1%} of the target's own tokens",
        "size": _size(draft.bytes, draft.target_bytes),
        "took": f"{draft.seconds:,.1f} s",
    }
    return Group(lines_table(lines), *note_lines(draft.notes))


def _by_type(unfit: Sequence[Unfit]) -> dict[str, list[Unfit]]:
    """Tensors by the type that they get, the most common type first."""
    types = [got for got, _ in Counter(tensor.got for tensor in unfit).most_common()]
    return {got: [tensor for tensor in unfit if tensor.got == got] for got in types}


def _size(bytes_: int, target_bytes: int) -> str:
    share = f"{bytes_ / max(1, target_bytes):.0%} of the target's {format_bytes(target_bytes)}"
    return f"{format_bytes(bytes_)}, {share}"


def training_tables(result: DraftTrainingResult) -> RenderableType:
    """A trained draft: what it is, how much of its drafts was accepted, and what that comes to."""
    lines = {
        "draft": result.out,
        "for": result.target,
        "size": f"{format_bytes(result.bytes)}; the target has {format_bytes(result.target_bytes)}",
        "learnt from": f"{result.texts:,} answers of the target, in {result.steps:,} steps",
        "took": rough_duration(result.seconds),
    }
    drafts = [each for each in (result.before, result.after) if each]
    trees = " (with --tree, four for each branch)" if any(each.branches > 1 for each in drafts) else ""
    return Group(
        lines_table(lines),
        *note_lines(result.notes),
        Text(f"\nDrafts of four tokens{trees} on prompts that training did not see, greedy:", style="dim"),
        _acceptance(drafts),
        Text("\nWhat they cost, and the speed to be expected:", style="dim"),
        _costs(drafts),
    )


def _acceptance(drafts: Sequence[DraftFigures]) -> Table:
    """A line for each category and draft: which share of drafts was accepted up to each place."""
    places = max(len(category.by_place) for draft in drafts for category in draft.categories)
    columns = ("prompts", "draft", "tokens/step", *(f"place {place + 1}" for place in range(places)))
    table = plain_table(columns, left=("prompts", "draft"), gap=2)
    for number, category in enumerate(drafts[-1].categories):
        name = category.category
        for draft in drafts:
            row, tree = draft.categories[number], f" --tree {draft.branches}" if draft.branches > 1 else ""
            table.add_row(
                name, draft.draft + tree, f"{row.tokens_per_pass:.2f}", *(f"{share:.0%}" for share in row.by_place)
            )
            name = ""
    return table


def _costs(drafts: Sequence[DraftFigures]) -> Table:
    columns = ("draft", "a draft token", "of a target token", *(each.machine for each in drafts[0].expected))
    table = plain_table(columns, left=("draft",), gap=2)
    for draft in drafts:
        speeds = [
            f"{each.speedup:.2f}x (-k {each.draft_tokens})" if each.draft_tokens else "does not pay"
            for each in draft.expected
        ]
        share = f"{draft.drafted_s / draft.target_s:.0%}"
        table.add_row(draft.draft, duration(draft.drafted_s), share, *speeds)
    return table
