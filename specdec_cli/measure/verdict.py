"""Whether drafting pays: the verdict on a comparison, and what each variant shows, in words.

One rule for all of it: a ratio is shown only if the interval excludes 1 and drafts can have made the difference
(`Summary.claimed`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specdec_cli.decoding.statistics import MIN_PROMPTS, Interval
from specdec_cli.measure.trials import Summary

Pays = Literal[
    "yes", "no", "inconclusive", "too few prompts", "nothing drafted", "few accepted", "wrong", "not measured"
]
_PAYS: dict[str, Pays] = {
    **{"faster": "yes", "slower": "no", "no difference": "no"},
    **{"inconclusive": "inconclusive", "too few prompts": "too few prompts"},
}
"""The verdict, by the finding of the best variant."""
_ALONE = "Run the target alone (--drafter none)."
_MEASURE_MORE = "Measure more prompts (--limit) or rounds (--repeat), on a quieter machine if you can."


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallVerdict:
    """Does drafting pay?

    headline: the answer in one line. sentence: what it rests on. recommendation: what to do. variant: the best one,
    None if none was measured; speedup: its own, if it may be claimed; lossy: whether it is. winner: the variant to use,
    which may be the target alone; None if the measurements do not decide. ranking: all variants, the fastest first.
    """

    pays: Pays
    headline: str
    sentence: str
    recommendation: str
    variant: str | None = None
    speedup: Interval | None = None
    winner: str | None = None
    lossy: bool = False
    ranking: tuple[str, ...] = ()


def overall_verdict(
    overall: Sequence[Summary], baselines: Mapping[str, str], wrong: Collection[str] = (), default: str | None = None
) -> OverallVerdict:
    """overall: each variant's figures over all prompts. baselines: by variant. wrong: variants with wrong answers.
    default: the variant with the default draft length.

    It is about the fastest variant whose interval is above 1, or else about the one with the highest mean. Of several
    variants, the best one's interval has to be above 1 for the best of so many. A wrong variant is never the best, nor
    is one that used no drafts; a lossy one is only where no other was measured.
    """
    ranking = _ranking(overall, baselines)
    measured = {each.variant: each for each in overall if baselines.get(each.variant) != each.variant and each.finding}
    right = {variant: each for variant, each in measured.items() if variant not in wrong}
    drafting = {variant: each for variant, each in right.items() if not each.ran_alone}
    if not drafting:
        return replace(_without_drafts(right, baselines, bool(measured)), ranking=ranking)
    exact = {variant: each for variant, each in drafting.items() if each.distance_per_token is None} or drafting
    faster = {variant: each for variant, each in exact.items() if each.finding == "faster"}
    sure = {variant: each for variant, each in faster.items() if _is_faster(each, len(exact))}
    chosen = sure or faster or exact
    best = chosen[next(variant for variant in ranking if variant in chosen)]
    pays = "inconclusive" if faster and not sure else _PAYS[best.finding]
    others = wrong or any(each.distance_per_token is not None for each in measured.values())
    setting = "exact setting" if others and best.distance_per_token is None else "setting"
    headline, sentence, recommendation = _words(best, pays, setting if len(measured) > 1 else "", default)
    if default != best.variant and default in right and pays != "too few prompts":
        sentence += f" The default draft length, {default}, {_predicate(right[default])}."
    return OverallVerdict(
        pays=pays,
        headline=headline,
        sentence=sentence,
        recommendation=recommendation,
        variant=best.variant,
        speedup=None if pays == "inconclusive" else best.claimed,
        winner={"yes": best.variant, "no": baselines.get(best.variant)}.get(pays),
        lossy=best.distance_per_token is not None,
        ranking=ranking,
    )


def _is_faster(summary: Summary, variants: int) -> bool:
    """Whether it's faster than the target alone, also as the best of so many variants."""
    return summary.speedup is not None and summary.speedup.best_of(variants).difference == "faster"


def _ranking(overall: Sequence[Summary], baselines: Mapping[str, str]) -> tuple[str, ...]:
    """By the ratio to the baseline, which is 1 for all that ran the target alone."""

    def ratio(summary: Summary) -> float:
        if summary.ran_alone or baselines.get(summary.variant) == summary.variant:
            return 1.0
        return summary.speedup.mean if summary.speedup else 0.0

    return tuple(each.variant for each in sorted(overall, key=ratio, reverse=True))


def _without_drafts(right: Mapping[str, Summary], baselines: Mapping[str, str], any_measured: bool) -> OverallVerdict:
    """The verdict where no variant used drafts. right: those whose answers are right."""
    if not right and any_measured:
        return OverallVerdict(
            pays="wrong",
            headline="Wrong: answers are not the target's own",
            sentence="No setting measured gives the target's own answers. This is a bug in specdec.",
            recommendation="Please report it with the output of --json.",
        )
    if not right:
        return OverallVerdict(
            pays="not measured",
            headline="Not measured: no answer was long enough",
            sentence="There is nothing to compare: no setting has a speed to compare with the target's.",
            recommendation="Ask for longer answers (-n).",
        )
    few = [variant for variant, each in right.items() if each.finding == "few accepted"]
    variant = next(iter(few or right))
    return OverallVerdict(
        pays="few accepted" if few else "nothing drafted",
        headline=f"No: {'hardly any tokens came from drafts' if few else 'nothing was drafted'}",
        sentence="Any difference from the target alone is the cost of trying to draft, and noise.",
        recommendation=_ALONE,
        variant=variant,
        winner=baselines.get(variant),
    )


def _words(best: Summary, pays: Pays, setting: str, default: str | None) -> tuple[str, str, str]:
    """Headline, sentence and recommendation. setting: what the variants are, if there are several."""
    name, speedup, interval = best.variant, best.claimed, _interval(best)
    if pays == "yes":
        sentence = f"{name} is {f'the fastest {setting} measured' if setting else 'faster than the target alone'}."
        if best.distance_per_token is not None:
            sentence += " It's LOSSY: its answers don't have the target's distribution."
        advice = f"Keep the default draft length, {name}." if name == default else f"Use {name}."
        return f"Yes: {speedup} with {name}", sentence, advice
    if pays == "no":
        if setting:
            closest = f"{name} comes closest{f': {speedup}' if speedup else interval}."
            return f"No: no {setting} measured is faster than the target alone", closest, _ALONE
        headline = f"No: {speedup} with {name}" if speedup else f"No: {name} is as fast as the target alone"
        return headline, f"{name} is not faster than the target alone{interval}.", _ALONE
    if pays == "inconclusive":
        if speedup:
            chance = f"{name} was measured at {speedup}, but the best of several settings can look faster by chance."
            return f"Inconclusive: {name} may be faster than the target alone", chance, _MEASURE_MORE
        headline = f"Inconclusive: {name} may be faster or slower than the target alone"
        return headline, f"The 95% interval is too wide to decide{interval}.", _MEASURE_MORE
    count = "1 was" if best.speedup and best.speedup.count == 1 else "2 were"
    headline = f"Too few prompts: {count} measured, and an interval needs at least {MIN_PROMPTS}"
    return headline, "Without an interval, no speedup is claimed.", "Measure more prompts."


def _interval(summary: Summary) -> str:
    """The interval, where it holds 1; elsewhere it is shown with the ratio."""
    speedup = None if summary.claimed or summary.ran_alone else summary.speedup
    return f" ({speedup.span})" if speedup and speedup.span else ""


def _predicate(summary: Summary) -> str:
    """What a variant's speed shows, after its name."""
    if summary.finding == "too few prompts":
        return "has no interval"
    return {
        "nothing drafted": "drafted nothing",
        "few accepted": "used hardly any draft tokens",
        "faster": f"is faster than the target alone: {summary.claimed}",
        "slower": f"is slower than the target alone: {summary.claimed}",
        "no difference": f"is as fast as the target alone{_interval(summary)}",
        "inconclusive": f"may be faster or slower than the target alone{_interval(summary)}",
    }.get(summary.finding, "was not measured: no answer was long enough")


def findings(summary: Summary) -> list[str]:
    """A variant's own result in sentences: the finding, what the speed consists of, and whether it is lossy."""
    sentences = [f"{summary.variant} {_predicate(summary)}."]
    if summary.claimed and summary.pass_cost and summary.per_position:
        sentences.append(
            f"A step gives {summary.tokens_per_step:.2f} tokens, and takes {summary.pass_cost:.2f} times as long as "
            "one of the target alone."
        )
    if summary.distance_per_token is not None:
        sentences.append(
            "It's LOSSY: the distribution that a token is drawn from differs from the target's by "
            f"{summary.distance_per_token:.3f} in total variation, on average over the tokens."
        )
    return sentences
