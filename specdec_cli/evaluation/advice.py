"""Why a variant was fast or slow, and what would help: computed from measured costs and acceptance, in words."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.evaluation.statistics import Interval, Summary
from specdec_cli.evaluation.trials import Trial

_DEAREST = 3.0
"""A pass over two tokens costs hardly more than two over one, unless others used the machine while it was timed."""
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
    drafting = [(trial.draft_s - trial.draft_prefill_s) / trial.drafted for trial in trials if trial.drafted]
    other = [(trial.sample_s + trial.overhead_s) / trial.steps for trial in trials if trial.steps]
    return Costs(Curve(verify), Curve({1: statistics.median(drafting or [0.0])}), statistics.median(other or [0.0]))


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


def best_length(costs: Costs, per_position: Sequence[float]) -> tuple[int, float]:
    """The draft length of 1 to 16 with the highest expected speedup, and that speedup."""
    speedups = {k: expected_speedup(costs, per_position, k) for k in range(1, LONGEST + 1)}
    best = max(speedups, key=lambda k: speedups[k])
    return best, speedups[best]


def half_priced(costs: Costs) -> Costs:
    """The same with a draft model at half the cost."""
    return replace(costs, draft=Curve({n: seconds / 2 for n, seconds in costs.draft.points.items()}))


def verdict(
    summary: Summary,
    trials: Iterable[Trial],
    costs: Costs | None,
    measured: Mapping[int, float] | None,
    experts: int = 0,
) -> list[str]:
    """A variant's result in sentences: the finding, its causes, what would help, and whether it is lossy.

    measured: speedups at the draft lengths that were tried with settings otherwise the same; None if this variant's
    length adapts, so that there is none to advise. experts: of the target, 0 for a dense model.
    """
    sentences = [_finding(summary.arm, summary.speedup)]
    mine = [trial for trial in trials if trial.arm == summary.arm]
    if mine and summary.speedup:
        slow = summary.speedup.difference != "faster"
        if slow:
            sentences += _short_answers(mine)
        if summary.per_position and costs:
            k = max(len(trial.reached) for trial in mine)
            if measured is None:  # of a length that adapts, the mean says more than the longest
                k = max(1, round(sum(trial.drafted for trial in mine) / sum(trial.steps for trial in mine)))
            sentences += _causes(summary, mine, costs, k, slow, experts)
            if measured is not None:
                sentences += _remedies(summary.per_position, costs, {**measured, k: summary.speedup.mean}, k)
    if summary.distance_per_token is not None:
        sentences.append(
            "This arm is LOSSY: the distribution that a token is drawn from differs from the target's by "
            f"{summary.distance_per_token:.3f} in total variation, on average over the tokens."
        )
    return sentences


def where_drafting_does_not_pay(two_over_one: float | None, drafter: str) -> str:
    """What to tell of an answer for which nothing was drafted: why, and what to try."""
    cost = ""
    if two_over_one:
        busy = ": is the machine busy?" if two_over_one > _DEAREST else ""
        cost = f" (2 tokens cost {two_over_one:.1f}x one{busy})"
    other = "a text to be edited or continued" if "ngram" in drafter else "--drafter ngram"
    return (
        f"Drafting does not pay here{cost}: the target ran alone. Try {other}, or another machine: "
        "specdec tune --what-if rtx-4090"
    )


def _finding(arm: str, speedup: Interval | None) -> str:
    if speedup is None:
        return f"{arm}: not measured, no answer was long enough."
    if speedup.difference == "too few prompts":
        few = "1 prompt is" if speedup.count == 1 else f"{speedup.count} prompts are"
        return f"{arm}: {speedup} the target alone's speed, but {few} too few to claim anything."
    word = "from" if speedup.difference == "no measurable difference" else "than"
    return f"{arm}: {speedup.difference} {word} the target alone, {speedup}."


def _short_answers(mine: Sequence[Trial]) -> Iterator[str]:
    """Answers too short to speed up, and prompts too long for them."""
    length = statistics.median(len(trial.tokens) for trial in mine)
    if length < 16:
        yield f"The answers are short ({length:.0f} tokens): there is little to speed up."
    share = _share(mine, [trial.draft_prefill_s for trial in mine])
    if share > 0.1:
        yield f"The draft model's own reading of the prompt takes {share:.0%} of the decoding time."


def _causes(summary: Summary, mine: Sequence[Trial], costs: Costs, k: int, slow: bool, experts: int) -> Iterator[str]:
    steepness = costs.verify(k + 1) / costs.verify(1)
    if slow:
        share = _share(mine, [trial.draft_s - trial.draft_prefill_s for trial in mine])
        if share > 0.3:
            cost = costs.draft(1) / costs.verify(1)
            yield f"Drafting takes {share:.0%} of the time: one draft token costs {cost:.0%} of a target token."
        if summary.acceptance_rate is not None and summary.acceptance_rate < 0.5:
            yield f"Acceptance is low: {summary.acceptance_rate:.0%} of what was drafted."
        if steepness > 1.5:
            yield f"Verification is not flat here: checking {k + 1} tokens costs {steepness:.1f} times one."
    if experts and steepness > 1.3:
        yield (
            f"The target is a mixture of {experts} experts: several tokens at once wake more experts than one does, "
            "so checking a draft costs more than in a dense model."
        )


def _share(mine: Sequence[Trial], seconds: Iterable[float]) -> float:
    decoding = sum(trial.decode_s for trial in mine)
    return sum(seconds) / decoding if decoding else 0.0


def _remedies(per_position: Sequence[float], costs: Costs, measured: Mapping[int, float], k: int) -> Iterator[str]:
    """Predictions are scaled so that at a measured length they give what was measured. k: this variant's own length."""

    def scaled(best: tuple[int, float]) -> float:
        reference = best[0] if best[0] in measured else k
        return best[1] * measured[reference] / expected_speedup(costs, per_position, reference)

    best, half_cost = (best_length(prices, per_position) for prices in (costs, half_priced(costs)))
    gain, cheap = scaled(best), scaled(half_cost)
    if best[0] not in measured and gain > measured[k] * 1.03:
        yield f"From the measured costs and acceptance, k={best[0]} would give about {gain:.2f}x."
    if cheap > 1 and cheap > max(gain, measured[k]) * 1.05:
        yield f"A draft of the same quality at half the cost would give about {cheap:.2f}x (at k={half_cost[0]})."
    if max(gain, cheap, *measured.values()) < 1:
        yield "No draft length pays with this pair on this machine: run the target alone."
