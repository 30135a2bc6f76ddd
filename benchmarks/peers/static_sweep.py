"""The search of best_static.py: which fixed setting of llama-speculative-simple is its fastest on some prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from peers import SpeculativeSimple, Static, Task, by_prompt, interleaved, progress

P_MINS = (0.0, 0.5, 0.75, 0.9)
LONGEST = 16
SLOWER = 0.85


class Speeds:
    """Tokens per second of settings, from as many answers of each as there are."""

    def __init__(self, peer: SpeculativeSimple) -> None:
        self._peer = peer
        self._found: dict[Static, list[tuple[str, float]]] = {}

    def measure(self, task: Task, static: Static, i: int) -> None:
        """Add one answer, of round i."""
        answer = self._peer.answer(task, static, seed=i + 1)
        found = self._found.setdefault(static, [])
        if answer.counts:
            found.append((task.id, answer.tokens_per_s))

    def of(self, static: Static) -> float:
        """The median over prompts; 0 if no answer was long enough."""
        values = by_prompt(self._found[static])
        return statistics.median(values) if values else 0.0

    def ranked(self) -> list[Static]:
        """The fastest first."""
        return sorted(self._found, key=self.of, reverse=True)

    def to_json(self) -> list[dict[str, float]]:
        return [{"n_max": at.n_max, "p_min": at.p_min, "tokens_per_s": self.of(at)} for at in self.ranked()]


def sweep(peer: SpeculativeSimple, tasks: Sequence[Task], rounds: int) -> Speeds:
    """All settings that may be worth it, on a few prompts. The second round goes the other way."""
    speeds = Speeds(peer)
    tried = [static for p_min in P_MINS for static in _climb(speeds, tasks, p_min)]
    for i in range(1, rounds):
        for static in tried[::-1] if i % 2 else tried:
            for task in tasks:
                speeds.measure(task, static, i)
    return speeds


def _climb(speeds: Speeds, tasks: Sequence[Task], p_min: float) -> list[Static]:
    """Measure rising n_max at one p_min as long as that may pay; returns what was measured."""
    known: dict[Static, float] = {}
    every = [Static(n_max, p_min) for n_max in range(1, LONGEST + 1)]

    def slow(static: Static) -> bool:
        if static not in known:
            for task in tasks:
                speeds.measure(task, static, 0)
            known[static] = speeds.of(static)
        return known[static] < SLOWER * max(known.values())

    for i, static in enumerate(every):
        slow(static)
        if i >= 2 and all(map(slow, every[i - 2 : i + 1])) and slow(every[-1]):
            break
    if skipped := [static.n_max for static in every if static not in known]:
        progress(f"  p_min {p_min:g}: skipped n_max {skipped[0]} to {skipped[-1]}")
    return list(known)


def finals(peer: SpeculativeSimple, tasks: Sequence[Task], statics: Sequence[Static], rounds: int) -> Speeds:
    """A few settings on all prompts, interleaved."""
    speeds = Speeds(peer)
    for i, task, order in interleaved(tasks, statics, rounds):
        for static in order:
            speeds.measure(task, static, i)
    return speeds
