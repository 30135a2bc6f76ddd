"""The live view with one step in full under the text: `replay --step`."""

from __future__ import annotations

import math

from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.live import LiveDisplay
from specdec_cli.display.theme import LABEL, REJECTED, STYLES, safe


class StepDisplay(LiveDisplay):
    """Painted for each event that is shown, not by the clock."""

    def __init__(self, console: Console, max_tokens: int) -> None:
        super().__init__(console, max_tokens)
        self._next = math.inf

    def show(self, event: Event) -> None:
        super().show(event)
        if not isinstance(event, Done):
            self._repaint()

    def _panel(self, width: int) -> list[Text]:
        if self._step is None:
            tokens = self._report.prompt_tokens
            rows = [_rule(f"prompt of {tokens} tokens" if tokens else "before the prompt", width)]
        else:
            rows = [_rule(_headline(self._step), width), *_step_rows(self._step, width)]
        rows += [self._figures(), Text("space: next step   q: leave", LABEL)]
        for row in rows:
            row.truncate(width - 1, overflow="ellipsis")
        return rows


def _rule(title: str, width: int) -> Text:
    return Text(f"── {title} ".ljust(width - 1, "─"), "dim")


def _headline(step: Step) -> str:
    """What became of the draft, and when."""
    if step.index == 0:
        return f"step 0: the first token comes with the prompt, at {_ms(step.at)}"
    verdicts = {
        "correction": ", then corrected",
        "bonus": ", and a bonus token",
        "plain": "",
        "accepted": ", and the answer ended there",
    }
    drafted = f"{len(step.drafted)} drafted, {step.accepted} accepted" if step.drafted else "nothing drafted"
    verdict = verdicts[step.tokens[-1].origin] if step.tokens else ""
    times = f"draft {_ms(step.draft_s)}, verify {_ms(step.verify_s)}, at {_ms(step.at)}"
    return f"step {step.index}: {drafted}{verdict} ── {times}"


def _step_rows(step: Step, width: int) -> list[Text]:
    """A row for each token: those that stand with p and q, and in their places those that were thrown away."""
    roomy = width >= 80
    cells = 22 if roomy else max(width - 36, 6)
    symbols = str.maketrans({"\n": "⏎", "\t": "⇥", " ": "␣"})

    def row(place: str, text: str, token: int | None, style: Style, what: str) -> Text:
        shown = Text(safe(text).translate(symbols) or f"token {token}", style)
        shown.truncate(cells, overflow="ellipsis")
        line = Text(f"{place:>3}  ").append_text(shown)
        line.pad_right(max(cells + 7 - line.cell_len, 0))
        return line.append(f"{what:<12}")

    def chances(**known: float | None) -> str:
        shown = [(name, value) for name, value in known.items() if value is not None]
        return "".join(f" {name} {value:5.3f}{_bar(value) if roomy else ''}" for name, value in shown)

    rejected = list(zip(step.drafted[len(step.drafted) - len(step.rejected_text) :], step.rejected_text, strict=False))
    rows = []
    for place, token in enumerate(step.tokens, 1):
        if token.origin == "correction" and rejected:
            rows.append(row(str(place), rejected[0][1], rejected[0][0], REJECTED, "rejected"))
        number = str(place) if token.origin == "accepted" else ""
        line = row(number, token.text, token.id, STYLES[token.origin], token.origin)
        rows.append(line.append(chances(p=token.p, q=token.q)))
    first = step.accepted + 1
    after = rejected[1:] if rows and step.tokens[-1].origin == "correction" else rejected
    for place, (token_id, text) in enumerate(after, first + len(rejected) - len(after)):
        rows.append(row(str(place), text, token_id, REJECTED, "dropped with it" if after != rejected else "not used"))
    return rows


def _bar(share: float) -> str:
    """A share of 1 as up to ten cells, to an eighth of a cell, after a space."""
    eighths = round(min(share, 1.0) * 80)
    return " " + ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).strip().ljust(10)


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
