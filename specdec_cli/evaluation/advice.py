"""Why an arm was fast or slow, and what would help: computed from measured costs and acceptance, in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.evaluation.trials import Interval, Summary, Trial


def costs_of(trials: Sequence[Trial]) -> Costs | None:
    """The cost curve of all trials together; None if no step was timed."""
    samples: dict[int, list[tuple[int, float]]] = {}
    for trial in trials:
        for rows, (count, seconds) in trial.row_costs.items():
            samples.setdefault(rows, []).append((count, seconds))
    verify = {
        rows: statistics.median([seconds for count, seconds in found for _ in range(count)])
        for rows, found in samples.items()
        if sum(count for count, _ in found) >= 5 or rows == 1
    }
    if 1 not in verify:
        return None
    drafting = [(trial.draft_s - trial.draft_prefill_s) / trial.drafted for trial in trials if trial.drafted]
    other = [(trial.sample_s + trial.overhead_s) / trial.steps for trial in trials if trial.steps]
    drafts = Curve({1: statistics.median(drafting) if drafting else 0.0})
    return Costs(Curve(verify), drafts, statistics.median(other) if other else 0.0)


def expected_tokens(per_position: Sequence[float], k: int) -> float:
    """Tokens per step with k drafted; positions not measured go on at the last measured rate of decay."""
    rates = list(per_position)
    decay = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if len(rates) > 1 and rates[0] > 0 else (rates or [0.0])[0]
    while len(rates) < k:
        rates.append((rates[-1] if rates else 0.0) * min(decay, 1.0))
    return 1 + sum(rates[:k])


def expected_speedup(costs: Costs, per_position: Sequence[float], k: int, draft_factor: float = 1.0) -> float:
    """Tokens per second at draft length k over those of the target alone. draft_factor scales the draft's cost."""
    alone = costs.verify(1) + costs.other
    step = k * costs.draft(1) * draft_factor + costs.verify(k + 1) + costs.other
    return expected_tokens(per_position, k) * alone / step


def best_length(costs: Costs, per_position: Sequence[float], draft_factor: float = 1.0) -> tuple[int, float]:
    """The draft length of 1 to 16 with the highest expected speedup, and that speedup."""
    found = {k: expected_speedup(costs, per_position, k, draft_factor) for k in range(1, LONGEST + 1)}
    best = max(found, key=lambda k: found[k])
    return best, found[best]


def verdict(
    summary: Summary,
    trials: Sequence[Trial],
    costs: Costs | None,
    measured: Mapping[int, float] | None,
    experts: int = 0,
) -> list[str]:
    """An arm's result in sentences: the finding, its causes, what would help.

    trials: this arm's and the baseline's. measured: speedups at the draft lengths that were tried with settings
    otherwise the same; None if this arm's length adapts itself, so that there is none to advise. experts: of the
    target, 0 for a dense model.
    """
    said = [_finding(summary.arm, summary.speedup)]
    mine = [trial for trial in trials if trial.arm == summary.arm]
    if not mine or summary.speedup is None:
        return said
    faster = summary.speedup.difference == "faster"
    if not faster:
        said += _short_answers(mine)
    if not summary.per_position or costs is None:
        return said
    k = max(len(trial.reached) for trial in mine)
    if measured is None:  # of a length that adapts, the usual one says more than the longest
        k = max(1, round(sum(trial.drafted for trial in mine) / sum(trial.steps for trial in mine)))
    flat = costs.verify(k + 1) / costs.verify(1)
    if not faster:
        said += _causes(summary, mine, costs, k, flat)
    if experts and flat > 1.3:
        said.append(
            f"The target is a mixture of {experts} experts: several tokens at once wake more experts than one does, "
            "so checking a draft costs more than in a dense model."
        )
    return said if measured is None else said + _help(summary, costs, k, measured)


def _finding(arm: str, speedup: Interval | None) -> str:
    if speedup is None:
        return f"{arm}: not measured, no answer was long enough."
    if speedup.difference == "too few prompts":
        few = "1 prompt is" if speedup.count == 1 else f"{speedup.count} prompts are"
        return f"{arm}: {speedup} the target alone's speed, but {few} too few to claim anything."
    if speedup.difference == "no measurable difference":
        return f"{arm}: no measurable difference from the target alone, {speedup}."
    return f"{arm}: {speedup.difference} than the target alone, {speedup}."


def _short_answers(mine: Sequence[Trial]) -> list[str]:
    """Answers too short to speed up, and prompts too long for them."""
    said = []
    length = statistics.median(len(trial.tokens) for trial in mine)
    if length < 16:
        said.append(f"The answers are short ({length:.0f} tokens): there is little to speed up.")
    reading, decoding = (sum(getattr(trial, name) for trial in mine) for name in ("draft_prefill_s", "decode_s"))
    if decoding and reading / decoding > 0.1:
        said.append(f"The draft model's own reading of the prompt takes {reading / decoding:.0%} of the decoding time.")
    return said


def _causes(summary: Summary, mine: Sequence[Trial], costs: Costs, k: int, flat: float) -> list[str]:
    said = []
    decoding = sum(trial.decode_s for trial in mine)
    share = sum(trial.draft_s - trial.draft_prefill_s for trial in mine) / decoding if decoding else 0.0
    if share > 0.3:
        cost = costs.draft(1) / costs.verify(1)
        said.append(f"Drafting takes {share:.0%} of the time: one draft token costs {cost:.0%} of a target token.")
    if summary.acceptance_rate is not None and summary.acceptance_rate < 0.5:
        said.append(f"Acceptance is low: {summary.acceptance_rate:.0%} of what was drafted.")
    if flat > 1.5:
        said.append(f"Verification is not flat here: checking {k + 1} tokens costs {flat:.1f} times one.")
    return said


def _help(summary: Summary, costs: Costs, k: int, measured: Mapping[int, float]) -> list[str]:
    """Predictions are scaled so that at a measured length, this arm's own included, they give what was measured."""
    if summary.speedup is None:
        return []
    own = summary.speedup.mean

    def scaled(at: int, hoped: float) -> float:
        reference, known = (at, measured[at]) if at in measured else (k, own)
        return hoped * known / expected_speedup(costs, summary.per_position, reference)

    best, gain = best_length(costs, summary.per_position)
    cheap_k, cheap = best_length(costs, summary.per_position, 0.5)
    gain, cheap = scaled(best, gain), scaled(cheap_k, cheap)
    said = []
    if best not in measured and best != k and gain > own * 1.03:
        said.append(f"From the measured costs and acceptance, k={best} would give about {gain:.2f}x.")
    if cheap > 1 and cheap > max(gain, own) * 1.05:
        said.append(f"A draft of the same quality at half the cost would give about {cheap:.2f}x (at k={cheap_k}).")
    if max(gain, cheap, *measured.values(), own) < 1:
        said.append("No draft length pays with this pair on this machine: run the target alone.")
    return said
