"""Why variants were fast or slow, and what would help: computed from measured costs and acceptance, in words.

The advice is about all variants together. A draft length that was tried counts as measured. Another one is predicted
from all variants that differ only in the length, if they were measured well enough to decide whether they are faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.decoding.wording import listed
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.simulate import half_priced
from specdec_cli.measure.trials import Summary, Trial, Variant, acceptance_by_position, paired_ratios
from specdec_cli.measure.verdict import OverallVerdict
from specdec_cli.settings.options import AUTO

_MIN_PASSES = 5
"""Fewer verifications of a size don't show what it costs."""
_DECIDED = ("faster", "slower", "no difference")
"""Findings that are precise enough to predict from."""


def advise(
    verdict: OverallVerdict,
    variants: Sequence[Variant[RecordedSettings]],
    overall: Sequence[Summary],
    trials: Sequence[Trial],
    experts: int = 0,
) -> list[str]:
    """What all variants together show: which may be as fast as the best, why slow ones are slow, and what would help.

    overall: the figures over all prompts of the variants without wrong answers. experts: of the target, 0 for a dense
    model.
    """
    none = [each.variant for each in overall if each.speedup and each.acceptance_rate is None]
    few = [each.variant for each in overall if each.finding == "few accepted"]
    measured = [each for each in overall if each.speedup and each.variant not in none + few]
    slow = [each for each in measured if each.finding != "faster"]
    costs = costs_of(trials)
    exact = {each.variant for each in overall if each.distance_per_token is None}
    sentences = [*_equals(verdict, variants, trials, exact)]
    for what, idle in (("Nothing was drafted", none), ("Hardly any tokens came from drafts", few)):
        if idle:
            why = "any difference from the target alone is the cost of trying to draft, and noise"
            sentences.append(f"{what} with {_names(idle)}, so {why}.")
    if slow:
        sentences += _short_answers([trial for trial in trials if trial.variant in {each.variant for each in slow}])
    if costs:
        sentences += _causes(slow, measured, trials, costs, experts)
        sentences += _remedies(verdict, families_of(variants, measured, trials, costs), measured)
    return sentences


def _equals(
    verdict: OverallVerdict, variants: Sequence[Variant[RecordedSettings]], trials: Sequence[Trial], exact: set[str]
) -> Iterator[str]:
    """The exact variants that may be as fast as the winner: the interval of the ratio between the two holds 1."""
    best, baseline = verdict.variant, {variant.name: variant.baseline for variant in variants}
    if verdict.pays != "yes" or best is None:
        return
    equal = []
    for variant in verdict.ranking:
        if variant in exact and variant not in (best, baseline[variant]) and baseline[variant] == baseline[best]:
            ratio = geometric_interval([*paired_ratios(trials, best, variant).values()])
            equal += [variant] if ratio and ratio.difference in ("no difference", "inconclusive") else []
    if equal:
        yield f"{_names(equal)} may be as fast as {best}: the interval of the ratio between them holds 1."


def _names(names: Sequence[str]) -> str:
    quoted = [f"({name})" if "," in name and len(names) > 1 else name for name in names]
    return listed(quoted)


def _short_answers(mine: Sequence[Trial]) -> Iterator[str]:
    """Answers that are too short to speed up, and prompts that the draft model reads for too long."""
    length = statistics.median(len(trial.tokens) for trial in mine)
    if length < 16:
        yield f"The answers are short ({length:.0f} tokens), so there is little to speed up."
    share = _share(mine, [trial.draft_prefill_s for trial in mine])
    if share > 0.1:
        yield f"The draft model takes {share:.0%} of the decoding time to read the prompt."


def _causes(
    slow: Sequence[Summary], measured: Sequence[Summary], trials: Sequence[Trial], costs: Costs, experts: int
) -> Iterator[str]:
    by_variant = {each.variant: [trial for trial in trials if trial.variant == each.variant] for each in measured}
    drafting = {
        each.variant: _share(mine, [trial.draft_s - trial.draft_prefill_s for trial in mine])
        for each in slow
        if (mine := by_variant[each.variant])
    }
    if drafting and (share := max(drafting.values())) > 0.3:
        variant = max(drafting, key=lambda name: drafting[name])
        cost = draft_cost(by_variant[variant])(1) / costs.verify(1)
        where = f" with {variant}" if len(measured) > 1 else ""
        what = f"one draft token costs {cost:.0%} of a target token"
        yield f"Drafting takes {share:.0%} of the time{where}, without reading the prompt: {what}."
    low = [each for each in slow if each.acceptance_rate is not None and each.acceptance_rate < 0.5]
    if low:
        rates = [f"{each.acceptance_rate:.0%}" + (f" with {each.variant}" if len(measured) > 1 else "") for each in low]
        yield f"Few draft tokens are accepted: {_names(rates)}."
    checked = sorted({_drafted(by_variant[each.variant]) + 1 for each in slow or measured})
    steepness = [costs.verify(tokens) / costs.verify(1) for tokens in checked]
    if slow and steepness and max(steepness) > 1.5:
        sizes, times = listed([str(tokens) for tokens in checked]), listed([f"{ratio:.1f}" for ratio in steepness])
        yield f"On this machine, verifying {sizes} tokens takes {times} times as long as generating one."
    if experts and steepness and max(steepness) > 1.3:
        yield (
            f"The target is a mixture of {experts} experts. Several tokens use more experts than one, so verifying a "
            "draft costs more than in a dense model."
        )


def _drafted(mine: Sequence[Trial]) -> int:
    """Tokens that a step typically drafts."""
    return max(1, round(sum(trial.drafted for trial in mine) / max(sum(trial.steps for trial in mine), 1)))


def _share(mine: Sequence[Trial], seconds: Iterable[float]) -> float:
    decoding = sum(trial.decode_s for trial in mine)
    return sum(seconds) / decoding if decoding else 0.0


def _remedies(verdict: OverallVerdict, families: Sequence[LengthFamily], measured: Sequence[Summary]) -> Iterator[str]:
    if not families:
        return
    lengths = range(1, LONGEST + 1)
    top = max((each.speedup.mean for each in measured if each.speedup), default=0.0)
    gain, best, family = max(((f.speedup(k), k, f) for f in families for k in lengths), key=lambda each: each[0])
    cheap, k, other = max(((f.half_cost_speedup(k), k, f) for f in families for k in lengths), key=lambda each: each[0])
    if gain > 1 and best not in family.measured and gain > top * 1.03:
        yield f"Measured costs and acceptance predict that {_named(family, best)} would give about {gain:.2f}x."
    if cheap > 1 and cheap > max(gain, top) * 1.05:
        yield f"A draft of the same quality at half the cost would give about {cheap:.2f}x (at {_named(other, k)})."
    if verdict.pays == "no" and max(gain, cheap, top) < 1:
        yield "No draft length pays with this pair on this machine, neither those measured nor any other."


def _named(family: LengthFamily, k: int) -> str:
    drafter = family.settings.drafter
    return f"k={k}" if drafter in (None, "model") else f"{drafter}, k={k}"


def costs_of(trials: Sequence[Trial]) -> Costs | None:
    """The cost curve of all trials together; None if no step was timed."""
    laps: dict[int, list[float]] = {}
    for trial in trials:
        for rows, (count, seconds) in trial.row_costs.items():
            laps.setdefault(rows, []).extend([seconds] * count)
    verify = {rows: statistics.median(all_) for rows, all_ in laps.items() if len(all_) >= _MIN_PASSES or rows == 1}
    if 1 not in verify:
        return None
    other = [(trial.sample_s + trial.overhead_s) / trial.steps for trial in trials if trial.steps]
    return Costs(Curve(verify), draft_cost(trials), statistics.median(other or [0.0]))


def draft_cost(trials: Iterable[Trial]) -> Curve:
    """Seconds for a draft token."""
    drafting = [(trial.draft_s - trial.draft_prefill_s) / trial.drafted for trial in trials if trial.drafted]
    return Curve({1: statistics.median(drafting or [0.0])})


def expected_tokens(per_position: Sequence[float], k: int) -> float:
    """Tokens per step with k drafted. Beyond the measured positions, acceptance decays at the same rate."""
    rates = list(per_position) or [0.0]
    decay = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if len(rates) > 1 and rates[0] > 0 else rates[0]
    rates += [rates[-1] * min(decay, 1.0) ** i for i in range(1, k - len(rates) + 1)]
    return 1 + sum(rates[:k])


def expected_speedup(costs: Costs, per_position: Sequence[float], k: int) -> float:
    """Tokens per second at draft length k over those of the target alone."""
    alone = costs.verify(1) + costs.other
    step = k * costs.draft(1) + costs.verify(k + 1) + costs.other
    return expected_tokens(per_position, k) * alone / step


@dataclass(frozen=True, slots=True)
class LengthFamily:
    """Variants that differ only in their fixed draft length. measured: the speedup at each length that was tried."""

    settings: RecordedSettings
    costs: Costs
    per_position: tuple[float, ...]
    measured: Mapping[int, float]

    def speedup(self, k: int) -> float:
        """The measured speedup at this length, or else the cost model's, scaled to fit the measured lengths."""
        return self.measured[k] if k in self.measured else self._model(self.costs, k) * self._scale(k)

    def half_cost_speedup(self, k: int) -> float:
        """The same with a draft of this quality at half the cost."""
        return self.speedup(k) * self._model(half_priced(self.costs), k) / self._model(self.costs, k)

    def _model(self, costs: Costs, k: int) -> float:
        return expected_speedup(costs, self.per_position, k)

    def _scale(self, k: int) -> float:
        """Measured over predicted speedup, interpolated between the lengths that were tried."""
        lengths = sorted(self.measured)
        ratios = [np.log(self.measured[length] / self._model(self.costs, length)) for length in lengths]
        return float(np.exp(np.interp(k, lengths, ratios)))


def families_of(
    variants: Iterable[Variant[RecordedSettings]], measured: Iterable[Summary], trials: Sequence[Trial], costs: Costs
) -> list[LengthFamily]:
    """The variants with a fixed draft length, by all other settings. Trees are left out: their passes are wider than
    their drafts are long.
    """
    speedups = {each.variant: each.speedup.mean for each in measured if each.speedup and each.finding in _DECIDED}
    members: dict[RecordedSettings, dict[int, str]] = {}
    for variant in variants:
        k = variant.settings.draft_tokens
        if isinstance(k, int) and variant.name in speedups and (variant.settings.tree or 1) == 1:
            members.setdefault(replace(variant.settings, draft_tokens=AUTO), {})[k] = variant.name
    families = []
    for settings, lengths in members.items():
        mine = [trial for trial in trials if trial.variant in lengths.values()]
        _, rates = acceptance_by_position(mine)
        own = replace(costs, draft=draft_cost(mine))
        families.append(LengthFamily(settings, own, rates, {k: speedups[variant] for k, variant in lengths.items()}))
    return families
