"""An answer against the target alone: how much faster drafts made it, and how that is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.metrics import Metrics, is_plain
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Step
from specdec_cli.engine.config import Settings


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The target alone on the same prompt with the same seed, and how its output compares.

    identical: None where the two are not meant to agree (sampling by rejection keeps the distribution, not the text).
    divergence: None when identical. speedup: with drafts against without, paired part by part; None where that was not
    measured. probes: 0 for a baseline that was run; else the number of steps without a draft, interleaved in the run
    itself, that it was measured in.
    """

    tokens_per_s: float | None
    identical: bool | None
    divergence: Divergence | None = None
    speedup: Interval | None = None
    probes: int = 0

    @property
    def claim(self) -> float | None:
        """The speedup, if it may be claimed: its interval excludes 1."""
        return self.speedup.mean if self.speedup and self.speedup.excludes_one else None

    @property
    def noisy(self) -> bool:
        """Whether the interval is too wide to say anything."""
        return self.speedup is not None and self.speedup.difference == "inconclusive"

    def to_json(self) -> dict[str, object]:
        """The `baseline` object of `run --json`."""
        return {
            "method": "probes" if self.probes else "measured",
            "tokens_per_s": self.tokens_per_s,
            "speedup": asdict(self.speedup) if self.speedup else None,
            "identical": self.identical,
            "first_divergence": self.divergence.to_json() if self.divergence else None,
        }


class ProbedRatios:
    """How many times as fast as the target alone a run is so far: a ratio for each probe in it.

    A probe is a row of steps that drafted nothing, of which those from the SETTLED-th on tell the cost. It is compared
    with all steps since the probe before, since both were timed on a machine that was about as busy.
    """

    def __init__(self) -> None:
        self.ratios: list[float] = []
        self._row: list[float] = []
        """Seconds of the steps without a draft that came last."""
        self._began = self._ended = 0.0
        self._tokens = 0

    @classmethod
    def of(cls, steps: Iterable[Step]) -> list[float]:
        """The ratios of a whole run."""
        probed = cls()
        for step in steps:
            probed.add(step)
        return probed.ratios

    def add(self, step: Step) -> None:
        """Take the next step of the run in."""
        if step.index == 0:
            self._began = step.at
            return
        if is_plain(step):
            self._row.append(step.verify_s + step.sample_s)
        elif self._row:
            alone = self._row[SETTLED - 1 :]
            if alone and self._ended > self._began:
                self.ratios.append(self._tokens / (self._ended - self._began) * sum(alone) / len(alone))
                self._began, self._tokens = self._ended, 0
            self._row.clear()
        self._tokens += len(step.tokens)
        self._ended = step.at


def where_drafting_does_not_pay(two_over_one: float | None, drafter: str) -> str:
    """What to tell of an answer for which nothing was drafted: why, and what to try."""
    cost = ""
    if two_over_one and two_over_one > 1:  # less is noise
        busy = ": is the machine busy?" if two_over_one > DEAREST else ""
        cost = f" (2 tokens cost {two_over_one:.1f}x one{busy})"
    other = "a text to be edited or continued" if "ngram" in drafter else "--drafter ngram"
    return (
        f"Drafting does not pay here{cost}: the target ran alone. Try {other}, or another machine: "
        "specdec tune --what-if rtx-4090"
    )


DEAREST = 3.0
"""A pass over two tokens costs hardly more than two over one, unless others used the machine while it was timed."""


_PARTS, _LEAST_TOKENS = 8, 12
"""Parts of an answer, and the fewest tokens of a part; of a shorter answer, the whole is written ROUNDS times."""
_ROUNDS = 5


def paired_speedup(
    write: Callable[[int, Settings], Metrics], answer: Sequence[int], settings: Settings
) -> Interval | None:
    """The speed with drafts over that of the target alone: parts of an answer are written again, by both in turn.

    A single answer of each says little: the first one runs cold, and other programs slow either down. Who begins
    changes from part to part. write: goes on after so many tokens of the answer, by these settings, which say how
    long. None if the answer is too short, or Ctrl-C came.
    """
    count = min(_PARTS, len(answer) // _LEAST_TOKENS)
    starts = [number * len(answer) // count for number in range(count)] if count >= 3 else [0] * _ROUNDS
    size = len(answer) // count if count >= 3 else len(answer)
    both = [settings.alone(), settings]
    ratios = []
    for number, start in enumerate(starts):
        speeds: dict[str, float] = {}
        for way in both if number % 2 else both[::-1]:
            metrics = write(start, replace(way, max_tokens=size))
            if metrics.reason == "interrupted":
                return None
            speeds[way.drafter] = metrics.tokens_per_s or 0.0
        alone, drafted = speeds["none"], speeds[settings.drafter]
        if alone and drafted:
            ratios.append(drafted / alone)
    return geometric_interval(ratios)
