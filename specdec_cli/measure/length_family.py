"""What other draft lengths would give: predicted from measured costs and acceptance, scaled to what was measured."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.measure.comparison_result import VariantInfo
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.summaries import Summary
from specdec_cli.measure.trials import Trial

_LEAST_PASSES = 5
"""Verifications of a size that it takes to say what they cost."""


def costs_of(trials: Sequence[Trial]) -> Costs | None:
    """The cost curve of all trials together; None if no step was timed."""
    laps: dict[int, list[float]] = {}
    for trial in trials:
        for rows, (count, seconds) in trial.row_costs.items():
            laps.setdefault(rows, []).extend([seconds] * count)
    verify = {rows: statistics.median(all_) for rows, all_ in laps.items() if len(all_) >= _LEAST_PASSES or rows == 1}
    if 1 not in verify:
        return None
    other = [(trial.sample_s + trial.overhead_s) / trial.steps for trial in trials if trial.steps]
    return Costs(Curve(verify), draft_cost(trials), statistics.median(other or [0.0]))


def draft_cost(trials: Iterable[Trial]) -> Curve:
    """Seconds for a draft token."""
    drafting = [(trial.draft_s - trial.draft_prefill_s) / trial.drafted for trial in trials if trial.drafted]
    return Curve({1: statistics.median(drafting or [0.0])})


def expected_tokens(per_position: Sequence[float], k: int) -> float:
    """Tokens per step with k drafted; positions not measured go on at the last measured rate of decay."""
    rates = list(per_position) or [0.0]
    decay = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if len(rates) > 1 and rates[0] > 0 else rates[0]
    rates += [rates[-1] * min(decay, 1.0) ** i for i in range(1, k - len(rates) + 1)]
    return 1 + sum(rates[:k])


def expected_speedup(costs: Costs, per_position: Sequence[float], k: int) -> float:
    """Tokens per second at draft length k over those of the target alone."""
    alone = costs.verify(1) + costs.other
    step = k * costs.draft(1) + costs.verify(k + 1) + costs.other
    return expected_tokens(per_position, k) * alone / step


def half_priced(costs: Costs) -> Costs:
    """The same with a draft model at half the cost."""
    return replace(costs, draft=Curve({n: seconds / 2 for n, seconds in costs.draft.points.items()}))


@dataclass(frozen=True, slots=True)
class LengthFamily:
    """Variants that differ in their fixed draft length alone. measured: the speedup at each length that was tried."""

    settings: RecordedSettings
    costs: Costs
    per_position: tuple[float, ...]
    measured: Mapping[int, float]

    def speedup(self, k: int) -> float:
        """What was measured at this length, or else the model's prediction, scaled as measurements ask for."""
        return self.measured[k] if k in self.measured else self._model(self.costs, k) * self._scale(k)

    def half_cost_speedup(self, k: int) -> float:
        """The same with a draft of this quality at half the cost."""
        return self.speedup(k) * self._model(half_priced(self.costs), k) / self._model(self.costs, k)

    def _model(self, costs: Costs, k: int) -> float:
        return expected_speedup(costs, self.per_position, k)

    def _scale(self, k: int) -> float:
        """Measured over predicted, read between the lengths that were tried."""
        lengths = sorted(self.measured)
        ratios = [np.log(self.measured[length] / self._model(self.costs, length)) for length in lengths]
        return float(np.exp(np.interp(k, lengths, ratios)))


def families_of(
    arms: Iterable[VariantInfo], measured: Iterable[Summary], trials: Sequence[Trial], costs: Costs
) -> list[LengthFamily]:
    """The variants with a fixed draft length, by all other settings. Trees are left out: their passes are wider than
    their drafts are long.
    """
    speedups = {each.arm: each.speedup.mean for each in measured if each.speedup}
    members: dict[RecordedSettings, dict[int, str]] = {}
    for arm in arms:
        k = arm.settings.draft_tokens
        if isinstance(k, int) and arm.name in speedups and (arm.settings.tree or 1) == 1:
            members.setdefault(replace(arm.settings, draft_tokens=None), {})[k] = arm.name
    families = []
    for settings, lengths in members.items():
        mine = [trial for trial in trials if trial.arm in lengths.values()]
        reached, kept = (
            [sum(counts) for counts in zip_longest(*(getattr(trial, name) for trial in mine), fillvalue=0)]
            for name in ("reached", "kept")
        )
        rates = tuple(k / r for k, r in zip(kept, reached, strict=True) if r)
        own = replace(costs, draft=draft_cost(mine))
        families.append(LengthFamily(settings, own, rates, {k: speedups[arm] for k, arm in lengths.items()}))
    return families
