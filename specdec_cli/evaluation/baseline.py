"""A run against the target alone."""

from dataclasses import asdict, dataclass

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.evaluation.statistics import Interval


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
        found = self.speedup
        return found.mean if found and found.difference in ("faster", "slower") else None

    def to_json(self) -> dict[str, object]:
        """The `baseline` object of `run --json`."""
        return {
            "method": "probes" if self.probes else "measured",
            "tokens_per_s": self.tokens_per_s,
            "speedup": asdict(self.speedup) if self.speedup else None,
            "identical": self.identical,
            "first_divergence": self.divergence.to_json() if self.divergence else None,
        }


def speedup_of(metrics: Metrics, baseline: BaselineResult | None) -> float | None:
    """Tokens per second over the measured baseline's; None when either is missing."""
    if baseline is None or not baseline.tokens_per_s or not metrics.tokens_per_s:
        return None
    return metrics.tokens_per_s / baseline.tokens_per_s
