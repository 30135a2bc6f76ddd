"""The making of a draft as it goes, and its result."""

import sys
from collections import Counter
from contextlib import ExitStack

from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specdec_cli.display.grids import lines_table, note_lines
from specdec_cli.display.safe_console import SafeConsole
from specdec_cli.display.status_line import status_line
from specdec_cli.display.theme import can_paint
from specdec_cli.make_drafts.draft_copy import DraftCopyResult, SearchStep
from specdec_cli.user_files import format_bytes


class DraftDisplay(ExitStack):
    """Shows on stderr how far a copy is, if that is a terminal, and how a search of layers goes."""

    def __init__(self, silent: bool) -> None:
        super().__init__()
        self._silent = silent
        self._name = ""

    def copying(self, name: str, done: int, total: int) -> None:
        """So many tensors of a file are written."""
        if self._name != name:
            self.close()
            self._name = name
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("tensors"),
                TimeElapsedColumn(),
                console=SafeConsole(stderr=True),
                transient=True,
                disable=self._silent or not can_paint(sys.stderr),
            )
            self._task = self._bar.add_task(f"writing {name}", total=total)
            self.enter_context(self._bar)
        self._bar.update(self._task, completed=done)
        if done == total:
            self._name = ""
            self.close()

    def answering(self) -> None:
        """The target writes the answers that agreement is measured on."""
        self.close()
        self.enter_context(status_line("letting the target answer", self._silent))

    def searching(self, layers: int, keep: int, prompts: int, tokens: int, trials: int, seconds: float) -> None:
        """What a search will do, and how long it may take."""
        about = f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
        self._print(
            f"{layers} layers, {keep} to keep: {trials} trials on {prompts} of the target's answers ({tokens} tokens), "
            f"about {about}\nlayers  agreement       size  kept"
        )

    def dropped(self, step: SearchStep, kept: str, bytes_: int) -> None:
        """A line of a search's table. kept: the layers that are left, as ranges."""
        note = "  (the target itself, in other batches)" if step.dropped is None else ""
        self._print(f"{len(step.layers):6}  {step.agreement:9.1%}  {format_bytes(bytes_):>9}  {kept}{note}")

    def _print(self, text: str) -> None:
        if not self._silent:
            print(text, file=sys.stderr, flush=True)


def draft_tables(draft: DraftCopyResult) -> RenderableType:
    """A finished draft."""
    share = draft.bytes / max(1, draft.target_bytes)
    pruned = draft.kept and len(draft.layers) < (draft.of or 0)
    type_, unfit = draft.type, list[str]()
    for got, count in Counter(tensor.got for tensor in draft.unfit).most_common():
        if not unfit:  # what most of those tensors are instead
            type_ += f" by name; {count} tensors are {got}"
        tensors = [tensor for tensor in draft.unfit if tensor.got == got]
        columns = " or ".join(f"{columns:,}" for columns in sorted({tensor.columns for tensor in tensors}))
        types = " or ".join(sorted({tensor.wanted for tensor in tensors}))
        unfit.append(f"{count} tensor{'s'[: count > 1]} became {got}: rows of {columns} values do not fit {types}")
    lines = {
        "draft": draft.out,
        "of": draft.target,
        "layers": f"{draft.kept} ({len(draft.layers)} of {draft.of})" if pruned else "",
        "type": type_,
        "agreement": "" if draft.agreement is None else f"{draft.agreement:.1%} of the target's own tokens",
        "size": f"{format_bytes(draft.bytes)}, {share:.0%} of the target's {format_bytes(draft.target_bytes)}",
        "took": f"{draft.seconds:,.1f} s",
    }
    return Group(lines_table(lines), *note_lines([*unfit, *draft.notes]))
