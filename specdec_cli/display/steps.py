"""`replay --step`: a recorded run, one step for each key. The tokens of the step are listed below the text, all of them
if they fit.
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

try:
    import termios
    import tty
except ImportError:  # on Windows
    CAN_READ_KEYS = False
else:
    CAN_READ_KEYS = True

from specdec_cli.decoding.types import Event, Prefill, Step
from specdec_cli.display.live import LiveDisplay
from specdec_cli.display.parts import LABEL, REJECTED, STYLES, bar, duration

_OTHER_ROWS = 6
"""Of the screen, besides the tokens: the title, two rows of figures, the keys, a row of the answer and the last one."""
_POLL_S = 0.05
_NEXT = {b" ", b"\r", b"\n", b"\x1b[C", b"\x1bOC"}
_LEAVE = {b"q", b"Q", b"\x03", b"\x04", b""}
_KEY = re.compile(rb"\x1b\[[\d;]*[@-~]|\x1bO.|.", re.DOTALL)


class StepDisplay(LiveDisplay):
    """Repaints after every event, however fast they come."""

    _interval_s = 0.0

    def show(self, event: Event) -> None:
        super().show(event)
        if isinstance(event, Prefill):
            with self._lock:
                self._repaint()

    def _panel(self, width: int, height: int) -> list[Text]:
        tokens, step = self._report.prompt_tokens, self._step
        title = headline(step) if step else f"prompt of {tokens} tokens" if tokens else "before the prompt"
        rows = _step_rows(step, width) if step else []
        if (more := len(rows) - max(height - _OTHER_ROWS, 2)) > 0:
            first = (len(rows) - more) // 2
            rows[first : first + more + 1] = [Text(f"     … {more + 1} more", LABEL)]
        rows.insert(0, Text(f"── {title} ".ljust(width - 1, "─"), "dim"))
        rows += [*self._figures(width), Text("space: next step   q: leave", LABEL)]
        for row in rows:
            row.truncate(width - 1, overflow="ellipsis")
        return rows


def headline(step: Step) -> str:
    """The result of a step and its times, in one line."""
    if step.index == 0:
        return f"step 0: the first token, from the pass over the prompt, at {duration(step.at)}"
    verdicts = {
        "correction": ", then corrected",
        "bonus": ", and a bonus token",
        "plain": "",
        "accepted": ", where the answer ended",
    }
    by = f" by {step.source}" if step.source else ""
    tree = " in a tree" if step.parents is not None else ""
    drafted = f"{len(step.drafted)} drafted{by}{tree}, {step.accepted} accepted" if step.drafted else "nothing drafted"
    tested = [token for token in step.tokens if token.origin != "forced"]
    verdict = verdicts[tested[-1].origin] if tested else ""
    verdict += f", then {step.forced} forced" if step.forced else ""
    times = f"draft {duration(step.draft_s)}, verify {duration(step.verify_s)}, at {duration(step.at)}"
    return f"step {step.index}: {drafted}{verdict} ── {times}"


def _step_rows(step: Step, width: int) -> list[Text]:
    """A row for each token: accepted ones with p and q, rejected ones at their positions."""
    roomy = width >= 80
    cells = 22 if roomy else max(width - 36, 6)
    symbols = str.maketrans({"\n": "⏎", "\t": "⇥", " ": "␣"})

    def row(number: str, text: str, token: int | None, style: Style, what: str) -> Text:
        shown = Text(text.translate(symbols) or f"token {token}", style)
        shown.truncate(cells, overflow="ellipsis")
        line = Text(f"{number:>3}  ").append_text(shown)
        line.pad_right(max(cells + 7 - line.cell_len, 0))
        return line.append(f"{what:<12}")

    def chances(**known: float | None) -> str:
        shown = [(name, value) for name, value in known.items() if value is not None]
        return "".join(f" {name} {value:5.3f}{f' {bar(value, 10):10}' if roomy else ''}" for name, value in shown)

    lost = lost_tokens(step)
    rows = []
    for depth, token in enumerate(step.tokens, 1):
        tried = [each for each in lost if each.depth == depth and each.fate == "rejected"]
        rows += [row(str(depth), each.text, each.id, REJECTED, each.fate) for each in tried]
        number = str(depth) if token.origin == "accepted" else ""
        line = row(number, token.text, token.id, STYLES[token.origin], token.origin)
        rows.append(line.append(chances(p=token.p, q=token.q)))
    for each in lost:
        if each.fate != "rejected":
            line = row(str(each.depth), each.text, each.id, REJECTED, each.fate)
            rows.append(line.append(f" after {each.after.translate(symbols)}" if each.after else "", "dim"))
    return rows


class LostToken(NamedTuple):
    """A draft token that was not accepted. depth: its position in the draft, from 1. fate: rejected, dropped because it
    follows a rejected one, or not used. after: in a tree, the text of the token that it follows.
    """

    id: int
    text: str
    depth: int
    fate: str
    after: str


def lost_tokens(step: Step) -> list[LostToken]:
    """The tokens of a draft that were not accepted, and why."""
    parents, path = step.all_parents, step.accepted_path
    untested = path[-1] if path and step.tokens[-1].origin == "accepted" else None  # where the answer ended
    fates: dict[int, str] = {}
    depths: list[int] = []
    for node, parent in enumerate(parents):
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        if node in path:
            continue
        if parent in fates:
            fates[node] = "not used" if fates[parent] == "not used" else "dropped with it"
        else:  # after an accepted token: tried, unless the answer ended there or an earlier sibling was accepted
            tried = parent != untested and not any(parents[other] == parent and other < node for other in path)
            fates[node] = "rejected" if tried else "not used"
    nodes = list(fates)[max(len(fates) - len(step.rejected_text), 0) :]
    texts = dict(zip(nodes, step.rejected_text, strict=False))
    lost = []
    for node, text in texts.items():
        after, fate, parent = "", fates[node], parents[node]
        if step.parents is not None and parent >= 0:
            after = step.tokens[path.index(parent)].text if parent in path else texts.get(parent, "")
            fate = fate.removesuffix(" with it")
        lost.append(LostToken(step.drafted[node], text, depths[node], fate, after))
    return lost


class Keyboard:
    """Reads single keys without Enter and echo, in a `with` block. interrupted: whether Ctrl-C or SIGTERM came."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._fd = sys.stdin.fileno()
        self._pending: list[bytes] = []
        self._before = termios.tcgetattr(self._fd)

    def __enter__(self) -> Keyboard:
        tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, self._before)

    def wait(self, event: Event) -> bool:
        """Wait for a key before showing an event. False if the user leaves."""
        while not isinstance(event, Prefill) and not self._interrupted():
            if not self._pending and select.select([self._fd], [], [], _POLL_S)[0]:
                self._pending.extend(_KEY.findall(os.read(self._fd, 1024)) or [b""])  # b"": the terminal has hung up
            if self._pending and (key := self._pending.pop(0)) in _NEXT | _LEAVE:
                return key in _NEXT
        return not self._interrupted()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Give the terminal back to the shell while the process is stopped."""
        now = termios.tcgetattr(self._fd)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        yield
        termios.tcsetattr(self._fd, termios.TCSADRAIN, now)
