"""Measures a cell: all methods answer each prompt in turn, and the figures are ratios within a prompt."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cells import AGAIN, ALONE, DEFAULT, Cell, Method, Size
from results import CellFigures, Figures, Ratio, commit, today
from tools import WARM_UP_TOKENS, Answer, Peers, Task, specdec

from specdec_cli import SamplingParams, Session
from specdec_cli.decoding.divergence import Transcript

MAX_NOISE = 0.05
"""The most that the target alone may differ from itself before a cell is measured again."""
ATTEMPTS = 3  # one of a quick cell
FEWEST_TOKENS = 16
"""The speed of a shorter answer means nothing."""


@dataclass(slots=True)
class Trials:
    """The answers of a cell, by method and prompt."""

    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def speeds(self, method: str) -> dict[str, float]:
        """Tokens per second by prompt."""
        return {
            prompt: answer.tokens_per_s
            for (name, prompt), answer in self.answers.items()
            if name == method and answer.tokens_per_s > 0 and (answer.ids is None or len(answer.ids) >= FEWEST_TOKENS)
        }

    @property
    def alone(self) -> dict[str, float]:
        """The target alone: the mean of its two runs of each prompt."""
        first, second = self.speeds(ALONE), self.speeds(AGAIN)
        return {prompt: (first[prompt] * second[prompt]) ** 0.5 for prompt in first.keys() & second.keys()}

    @property
    def noise(self) -> float:
        """How much the target alone differs from itself: the median over prompts, or the mean if that is more."""
        first, second = self.speeds(ALONE), self.speeds(AGAIN)
        both = [first[prompt] / second[prompt] for prompt in first.keys() & second.keys()]
        if not both:
            return 1.0
        return max(statistics.median(abs(each - 1) for each in both), abs(statistics.geometric_mean(both) - 1))


def ratios(speeds: Mapping[str, float], base: Mapping[str, float]) -> Ratio | None:
    """How many times as fast: the geometric mean over the prompts that both have."""
    return Ratio.of([speeds[prompt] / base[prompt] for prompt in sorted(speeds.keys() & base.keys())])


def measure_cell(
    cell: Cell,
    methods: Sequence[Method],
    tasks: Sequence[Task],
    size: Size,
    session: Session,
    peers: Peers,
) -> Iterator[CellFigures]:
    """A cell's figures after each attempt, from the quietest so far; none if all answers are too short for a speed."""
    sampling = SamplingParams(temperature=cell.temperature, max_tokens=size.tokens, seed=1)
    _warm_up(methods, tasks[0], sampling, session)
    best = None
    for attempt in range(1, 2 if size.quick else ATTEMPTS + 1):
        trials = Trials()
        peers.forget()
        for method, task in _in_turn(methods, tasks):
            if method.tool == "specdec":
                answer = specdec(session, method, task, sampling)
            else:
                answer = peers.answer(method, task, sampling)
            trials.answers[method.name, task.id] = answer
        best = trials if best is None or trials.noise < best.noise else best
        found = {method.name: figures for method in methods if (figures := _figures(best, method, tasks, session))}
        if ALONE in found:
            about = (len(tasks), size.tokens, size.quick, round(best.noise, 3), attempt)
            yield CellFigures(cell.model.name, cell.suite, cell.temperature, *about, commit(), today(), found)
        if trials.noise <= MAX_NOISE:
            return


def _warm_up(methods: Sequence[Method], task: Task, sampling: SamplingParams, session: Session) -> None:
    """Load what specdec loads at first use, and time passes whose costs aren't known yet. Servers do so themselves."""
    short = replace(sampling, max_tokens=WARM_UP_TOKENS)
    for method in methods:
        if method.tool == "specdec":
            specdec(session, method, task, short)


def _in_turn(methods: Sequence[Method], tasks: Sequence[Task]) -> Iterator[tuple[Method, Task]]:
    """Every method on every prompt, in an order that is reversed each time."""
    for at, task in enumerate(tasks):
        for method in [*methods][:: 1 if at % 2 == 0 else -1]:
            yield method, task


def _figures(trials: Trials, method: Method, tasks: Sequence[Task], session: Session) -> Figures | None:
    speeds, alone = trials.speeds(method.name), trials.alone
    speed = ratios(speeds, alone)
    if speed is None:
        return None
    mine = [answer for (name, _), answer in trials.answers.items() if name == method.name]
    drafted, steps = sum(answer.drafted for answer in mine), sum(answer.steps for answer in mine)
    emitted = sum(len(answer.ids) - 1 for answer in mine if answer.ids)
    ttft = [answer.ttft_ms for answer in mine if answer.ttft_ms]
    counts = _identity(trials, method, tasks, session)
    return Figures(
        round(statistics.geometric_mean(speeds.values()), 2),
        speed,
        ratios(trials.speeds(DEFAULT), speeds) if method.tool != "specdec" else None,
        round(emitted / steps, 2) if steps else 0.0,
        round(sum(answer.accepted for answer in mine) / drafted, 3) if drafted else None,
        round(statistics.median(ttft), 1) if ttft else 0.0,
        round(max(answer.memory_mb for answer in mine)),
        **counts,
    )


def _identity(trials: Trials, method: Method, tasks: Sequence[Task], session: Session) -> dict[str, int]:
    """How many answers are the target's own. Where specdec's differ, the cause is proved; a peer's
    target alone computes with other passes, so its differences say nothing of drafts.
    """
    counts = dict.fromkeys(("same", "rounding", "differs", "wrong"), 0)
    for task in tasks:
        alone, answer = (trials.answers.get((name, task.id)) for name in (ALONE, method.name))
        if alone is None or answer is None or answer.ids is None or method.name in (ALONE, AGAIN):
            continue
        if answer.ids == alone.ids:
            counts["same"] += 1
        elif answer.result is None or alone.result is None:
            counts["differs"] += 1
        elif answer.result.settings.reproduces:
            pair = [Transcript.of(each.metrics.history, each.threads) for each in (alone.result, answer.result)]
            why = session.divergence(task.tokens, *pair, answer.result.seed, answer.result.settings)
            counts["wrong" if why is None or why.kind == "wrong" else "rounding"] += 1
    return {name: count for name, count in counts.items() if count}
