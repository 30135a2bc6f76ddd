"""A drafted answer compared with the target alone: the speedup, how it is measured, and the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from specdec_cli.decoding.costs import BUSY_RATIO
from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval
from specdec_cli.decoding.types import LengthReason, Step
from specdec_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The target alone on the same prompt with the same seed, and how its text compares.

    identical: None if the texts need not agree (sampling by rejection keeps the distribution, not the text).
    divergence: None if the texts are equal, or if the cause of the difference is unknown. differs_at: the first token
    that differs. speedup: paired part by part; None if it wasn't measured. drafted_tokens_per_s: the speed with
    drafts that may be shown beside that of the target alone; None if the two weren't measured in turn. probes: how many
    steps of the answer itself ran without a draft and served as the baseline; 0 if the target alone was run.
    """

    tokens_per_s: float | None
    identical: bool | None
    divergence: Divergence | None = None
    speedup: Interval | None = None
    drafted_tokens_per_s: float | None = None
    probes: int = 0
    differs_at: int | None = None

    @classmethod
    def probed(cls, metrics: Metrics) -> BaselineResult | None:
        """From the answer's own steps without a draft; None if there are too few."""
        if (speedup := metrics.probed_speedup) is None:
            return None
        alone, drafted, probes = metrics.probed_tokens_per_s, metrics.tokens_per_s, len(metrics.probe_s)
        return cls(alone, None, speedup=speedup, drafted_tokens_per_s=drafted, probes=probes)

    @property
    def claim(self) -> float | None:
        """The speedup, if its interval excludes 1."""
        return self.speedup.mean if self.speedup and self.speedup.excludes_one else None

    def require_own(self) -> None:
        """Raise SpecdecError if the text differs from the target's own because of a bug."""
        if self.divergence and self.divergence.bug:
            raise SpecdecError(
                f"the answer is not the target's own: {self.divergence.bug}",
                "This is a bug in specdec: please report it with the output of run --json and the model's name.",
            )

    def to_json(self) -> dict[str, object]:
        """The `baseline` object of `run --json`."""
        return {
            "method": "probes" if self.probes else "measured",
            "tokens_per_s": self.tokens_per_s,
            "drafted_tokens_per_s": self.drafted_tokens_per_s,
            "speedup": asdict(self.speedup) if self.speedup else None,
            "identical": self.identical,
            "first_divergence": self.divergence.to_json() if self.divergence else None,
        }


_UNPROFITABLE = {
    LengthReason.NOT_WORTH_IT,
    LengthReason.TOO_UNSURE,
    LengthReason.TOO_DEAR,
    LengthReason.RESTING,
}
"""What a length policy says where a draft would cost more than it saves."""


def why_nothing_was_drafted(steps: Sequence[Step], two_over_one: float | None, drafter: str) -> str:
    """The reason in a few words. two_over_one: the cost of a pass over two tokens in passes over one, if known."""
    if not _UNPROFITABLE.intersection(step.why for step in steps):
        return "nothing in the text repeats" if drafter == "ngram" else ""
    if not two_over_one or two_over_one <= 1:  # less is noise
        return "it doesn't pay here"
    busy = ": busy machine?" if two_over_one > BUSY_RATIO else ""
    return f"2 tokens take {two_over_one:.1f}x as long as 1{busy}"


_PARTS, _MIN_TOKENS = 8, 12
"""Parts of an answer, and the fewest tokens of a part. A shorter answer is written as a whole, ROUNDS times."""
_ROUNDS = 5


def paired_speeds(
    write: Callable[[int, Settings], Metrics], answer: Sequence[int], settings: Settings
) -> list[tuple[float, float]]:
    """Tokens per second with drafts and of the target alone. Both write each part of an answer again, in turn.

    One answer of each says little: the first one runs cold, and other programs may slow down either. The order changes
    from part to part. write: continues the answer after so many tokens, with settings that limit the length. Empty if
    the answer is too short, or after Ctrl-C.
    """
    count = min(_PARTS, len(answer) // _MIN_TOKENS)
    starts = [number * len(answer) // count for number in range(count)] if count >= 3 else [0] * _ROUNDS
    size = len(answer) // count if count >= 3 else len(answer)
    both = [settings.alone(), settings]
    pairs = []
    for number, start in enumerate(starts):
        speeds: dict[str, float] = {}
        for each in both if number % 2 else both[::-1]:
            metrics = write(start, replace(each, max_tokens=size))
            if metrics.reason == "interrupted":
                return []
            speeds[each.drafter] = metrics.tokens_per_s or 0.0
        pairs.append((speeds[settings.drafter], speeds["none"]))
    return [pair for pair in pairs if all(pair)]
