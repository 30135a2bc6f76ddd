"""What the comparisons with other tools share: options, one answer of each tool, ratios and tables.

Each of them puts the folder above on the path first, where common.py is.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common import add_models, machine, median_and_spread

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session
from specdec_cli.measure import suites

FEWEST_TOKENS = 16
"""A shorter answer tells nothing of a speed."""

_FIGURES = [
    re.compile(pattern)
    for pattern in (
        r"encoded\s+(\d+) tokens",
        r"decoded\s+(\d+) tokens",
        r"decoded.* speed:\s+([\d.]+)",
        r"n_drafted\s+=\s+(\d+)",
        r"n_accept\s+=\s+(\d+)",
    )
]
_TRIES = 8
"""llama-speculative-simple does not wait for its log to be written: now and then its last lines are lost."""

Arm = TypeVar("Arm")


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a suite with its tokens."""

    id: str
    category: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one tool: its length, the speed of decoding alone, the share of drafted tokens that stood."""

    tokens: int
    tokens_per_s: float
    acceptance: float = 0.0
    ids: tuple[int, ...] = ()
    """The tokens themselves, where the tool tells."""

    @property
    def counts(self) -> bool:
        """Whether it is long enough to tell a speed."""
        return self.tokens >= FEWEST_TOKENS

    def to_json(self) -> dict[str, float]:
        return {"tokens": self.tokens, "tokens_per_s": self.tokens_per_s, "acceptance": self.acceptance}


@dataclass(frozen=True, slots=True)
class Static:
    """A fixed setting of llama-speculative-simple: drafts of up to n_max, ended where the draft is unsure."""

    n_max: int
    p_min: float = 0.0

    def __str__(self) -> str:
        return f"n_max {self.n_max}, p_min {self.p_min:g}"


@dataclass(frozen=True, slots=True)
class SpeculativeSimple:
    """llama.cpp's own llama-speculative-simple, which samples as the settings say. Each answer is a process."""

    binary: str
    settings: Settings
    flags: tuple[str, ...] = ()
    """Further ones of its own."""

    def answer(self, task: Task, static: Static, seed: int = 0) -> Answer:
        settings = self.settings
        command: list[object] = [
            *(self.binary, "-m", settings.target, "-md", settings.draft, "-p", task.text, "--no-escape"),
            *("-n", settings.max_tokens, "-c", settings.ctx, "-t", settings.threads, "--seed", seed),
            *("--temp", settings.temp, "--top-k", settings.top_k, "--top-p", settings.top_p),
            *("--min-p", settings.min_p, "--spec-type", "draft-simple", "--spec-draft-n-max", static.n_max),
            *("--spec-draft-n-min", 0, "--spec-draft-p-min", static.p_min, *self.flags),
        ]
        parts = [str(part) for part in command]
        for _ in range(_TRIES):
            done = subprocess.run(parts, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            output = done.stderr.decode(errors="replace")
            found = [match for figure in _FIGURES if (match := figure.search(output))]
            if len(found) == len(_FIGURES):
                break
        else:
            raise SystemExit(f"{self.binary} (exit code {done.returncode}) does not tell its figures:\n{output}")
        prompt, tokens, speed, drafted, accepted = (float(match[1]) for match in found)
        if prompt != len(task.tokens):
            raise SystemExit(f"{self.binary} reads {task.id} as {prompt:.0f} tokens, specdec as {len(task.tokens)}")
        return Answer(int(tokens), speed, accepted / max(drafted, 1.0))


def specdec(session: Session, task: Task, settings: Settings | None = None, seed: int = 0) -> Answer:
    """An answer of specdec, with the session's settings or with others."""
    report = Metrics.of(session.events(task.tokens, seed=seed, settings=settings))
    if notes := (*session.notes, *report.notes):  # it went on without its draft
        raise SystemExit(f"specdec did not do what was to be measured: {'; '.join(notes)}")
    return Answer(report.emitted, report.tokens_per_s or 0.0, report.acceptance_rate or 0.0, tuple(report.tokens))


def parser(description: str | None, repeat: int = 2) -> argparse.ArgumentParser:
    """The options that every comparison over a suite has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(made)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    made.add_argument("--repeat", type=int, default=repeat, help="rounds over the prompts")
    made.add_argument("--prompts", default="python", help="a suite's name or a file of prompts")
    made.add_argument("--category", action="append", default=[], help="only this one; may be given again")
    made.add_argument("--limit-per-category", type=int, metavar="N", help="prompts of each category, at most")
    made.add_argument("--draft-tokens", type=_auto_or_number, default="auto", help="specdec's draft length")
    made.add_argument("--out", type=Path, metavar="FILE.json", help="also write everything measured to this file")
    return made


def _auto_or_number(text: str) -> str | int:
    return text if text == "auto" else int(text)


def tasks_of(options: argparse.Namespace, session: Session) -> dict[str, list[Task]]:
    """The prompts that the options choose, by category."""
    prompts = suites.select(suites.load(options.prompts), options.category, None, options.limit_per_category)
    found: dict[str, list[Task]] = {}
    for prompt in prompts:
        tokens = tuple(session.tokenize(prompt.text, raw=True))
        found.setdefault(prompt.category, []).append(Task(prompt.id, prompt.category, prompt.text, tokens))
    return found


def interleaved(tasks: Sequence[Task], arms: Sequence[Arm], rounds: int) -> Iterator[tuple[int, Task, list[Arm]]]:
    """Every prompt in every round, with the arms in an order that alternates between prompts and between rounds."""
    for i in range(rounds):
        for at, task in enumerate(tasks):
            yield i, task, list(arms) if (i + at) % 2 == 0 else list(arms)[::-1]


def by_prompt(values: Iterable[tuple[str, float]]) -> list[float]:
    """One value a prompt, the median of its rounds, from pairs of a prompt's id and a value."""
    rounds: dict[str, list[float]] = {}
    for prompt, value in values:
        rounds.setdefault(prompt, []).append(value)
    return [statistics.median(found) for found in rounds.values()]


def spread(values: Sequence[float]) -> str:
    """The median of ratios and, of four or more, the quartiles, as a table's cell."""
    middle, low, high = median_and_spread(values)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})" if len(values) >= 4 else f"{middle:.2f}"


def row(*cells: object) -> str:
    """A line of a Markdown table; a float is a speed."""
    return "| " + " | ".join(f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def head(*cells: str) -> str:
    """The first two lines of a Markdown table."""
    return row(*cells) + "\n" + "|---" * len(cells) + "|"


def progress(text: str) -> None:
    """A line on stderr, apart from the tables."""
    print(text, file=sys.stderr, flush=True)


def heading(options: argparse.Namespace) -> str:
    """Where and how the figures were taken."""
    return f"{machine()}, {options.threads} threads, at most {options.tokens} tokens, rounds: {options.repeat}\n"


def write(options: argparse.Namespace, measured: dict[str, object]) -> None:
    """Everything measured as JSON, if a file was asked for."""
    if options.out:
        chosen = {name: value for name, value in vars(options).items() if name not in ("binary", "out")}
        options.out.write_text(json.dumps({"machine": machine(), "options": chosen, **measured}, indent=1) + "\n")
        progress(f"wrote {options.out.name}")
