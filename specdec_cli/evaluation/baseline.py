"""A run against the target alone."""

from dataclasses import dataclass

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.metrics import Metrics


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The target alone on the same prompt with the same seed, and how its output compares.

    identical: None where the two are not meant to agree (sampling by rejection keeps the distribution, not the text).
    divergence: None when identical. probes: 0 for a baseline that was run; else the number of steps without a draft,
    interleaved in the run itself, that it was measured in.
    """

    tokens_per_s: float | None
    identical: bool | None
    divergence: Divergence | None = None
    probes: int = 0

    def to_json(self) -> dict[str, object]:
        """The `baseline` object of `run --json`."""
        return {
            "method": "probes" if self.probes else "measured",
            "tokens_per_s": self.tokens_per_s,
            "identical": self.identical,
            "first_divergence": self.divergence.to_json() if self.divergence else None,
        }


def speedup_of(metrics: Metrics, baseline: BaselineResult | None) -> float | None:
    """Tokens per second over the measured baseline's; None when either is missing."""
    if baseline is None or not baseline.tokens_per_s or not metrics.tokens_per_s:
        return None
    return metrics.tokens_per_s / baseline.tokens_per_s
