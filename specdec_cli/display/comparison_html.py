"""A comparison as one HTML page that needs no network and no script, for screens light and dark, phones and paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from specdec_cli.decoding.divergence import first_difference
from specdec_cli.decoding.statistics import Interval
from specdec_cli.display import comparison_tables as tables
from specdec_cli.display.pages import render
from specdec_cli.engine.options import given_in
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.measure.trials import FEW_DRAFTS, Trial

_MAX_TEXTS = 350_000
"""Characters of HTML for the answers; prompts beyond are left out, those with divergences last."""
_MAX_TOKENS = 1500
_MAX_TICKS = 7
_FURTHEST = 2.5
"""How far past the means an interval may widen the axis; beyond, it is cut off and ends in an arrow."""
_PARTS = ("draft", "verify", "sample", "other")


def page(result: ComparisonResult) -> str:
    """The page."""
    answers, left_out = _answers(result)
    overall, verdict = result.of_category("all"), result.verdict
    details = {name: cells for name, *cells in tables.details_of(result)}
    facts, own = _facts(result)
    return render(
        "comparison.html",
        result=result,
        verdict=verdict,
        overall=overall,
        same=_same(result, verdict.variant),
        lanes=_lanes(result),
        when=_when(result.when),
        models=" + ".join(model.file for model in result.models.values()),
        preamble=tables.preamble(result),
        warnings=tables.warnings(result),
        wrong=sum(each.kind == "wrong" for each in result.divergences),
        drafting=[summary for summary in overall if summary.variant in details],
        about={
            name: {"time": time, "answers": same, "settings": own.get(name)}
            for name, (same, _, time) in details.items()
        },
        speedups=_speedups(result),
        longest_draft=max((len(each.per_position) for each in overall), default=0),
        timed=[each for each in overall if each.tpot_ms and each.shares],
        parts=_PARTS,
        columns=tables.COLUMNS,
        summary_cells=tables.summary_cells,
        few_drafts=FEW_DRAFTS,
        answers=answers,
        left_out=left_out,
        facts=facts,
    )


@dataclass(frozen=True, slots=True)
class _Lane:
    """One variant in the race. width, bounds: of its bar, and where its interval begins and how long it is, in %.

    kind: best, alone for a baseline, or drafts.
    """

    name: str
    kind: str
    width: float
    bounds: tuple[float, float] | None
    ratio: str
    speed: str


def _lanes(result: ComparisonResult) -> list[_Lane]:
    """The variants with a speed, the fastest first. Bars are as long as the speedups of the tables are large."""
    runners = [each for each in result.of_category("all") if each.tokens_per_s]
    speedups = [each.claimed for each in runners if each.claimed]
    # An absurd interval is cut off, as in the charts.
    longest = max([1.0, *(max(each.mean, min(each.high or 0, 1.3 * each.mean)) for each in speedups)])
    lanes = []
    for each in runners:
        speedup, bounds = each.claimed, None
        mean = speedup.mean if speedup else 1.0
        if speedup and speedup.low is not None and speedup.high is not None:
            high = min(speedup.high, longest)
            bounds = round(100 * speedup.low / longest, 1), round(100 * (high - speedup.low) / longest, 1)
        kind = "best" if each.variant == result.verdict.winner else "drafts" if speedup else "alone"
        ratio = "" if each.speedup and not speedup else f"{mean:.2f}x"
        speed = f"{each.tokens_per_s:,.1f} tok/s"
        lanes.append(_Lane(each.variant, kind, round(100 * mean / longest, 1), bounds, ratio, speed))
    return lanes


@dataclass(frozen=True, slots=True)
class _SpeedupBar:
    """mean, bounds: where they are on the axis, the interval as far as that goes. cut: the ends at which it goes on."""

    name: str
    speedup: Interval
    mean: float
    bounds: tuple[float, float] | None
    cut: str


@dataclass(frozen=True, slots=True)
class _Speedups:
    """A logarithmic axis of speedups, in % of its width. one: where 1 is. groups: the variants of each category."""

    one: float
    ticks: list[tuple[float, str]]
    groups: list[tuple[str, list[_SpeedupBar]]]


def _speedups(result: ComparisonResult) -> _Speedups | None:
    measured = (
        (category, [(each.variant, each.claimed) for each in result.of_category(category) if each.claimed])
        for category in result.categories
    )
    groups = [(category, speedups) for category, speedups in measured if speedups]
    if not groups:
        return None
    low, high = _window([speedup for _, speedups in groups for _, speedup in speedups])

    def place(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 1)

    def bar(name: str, speedup: Interval) -> _SpeedupBar:
        bounds, cut = None, ""
        if speedup.low is not None and speedup.high is not None:
            begin, end = place(max(speedup.low, low)), place(min(speedup.high, high))
            bounds = begin, round(end - begin, 1)
            cut = f"{'low' if speedup.low < low else ''} {'high' if speedup.high > high else ''}".strip()
        return _SpeedupBar(name, speedup, place(speedup.mean), bounds, cut)

    return _Speedups(
        one=place(1.0),
        ticks=[(place(tick), f"{tick:.3g}x") for tick in _ticks(low, high)],
        groups=[(category, [bar(*each) for each in speedups]) for category, speedups in groups],
    )


def _window(speedups: Sequence[Interval]) -> tuple[float, float]:
    """The range of the axis: 1, every mean, and the intervals as far as they are not absurd."""
    means = [1.0, *(speedup.mean for speedup in speedups)]
    lows = [speedup.low for speedup in speedups if speedup.low is not None]
    highs = [speedup.high for speedup in speedups if speedup.high is not None]
    low = max(min([*means, *lows]), min(means) / _FURTHEST)
    high = min(max([*means, *highs]), max(means) * _FURTHEST)
    room = max((high / low) ** 0.04, 1.02)
    return low / room, high * room


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis, 1 among them: multiples of a step, or powers where the range is wide."""
    steps = () if high / low > 4 else (0.02, 0.05, 0.1, 0.25, 0.5)
    choices = [[i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps]
    for base in (2.0, 4.0, 16.0, 256.0):
        span = range(math.ceil(math.log(low, base)), math.floor(math.log(high, base)) + 1)
        choices.append([base**i for i in span])
    return next((choice for choice in choices if len(choice) <= _MAX_TICKS), [1.0])


def _same(result: ComparisonResult, variant: str | None) -> str:
    """How many of the best variant's answers are the target's own."""
    counts = result.exactness.get(variant or "", {})
    if not (answers := sum(counts.values())):
        return ""
    if counts["identical"] == answers:
        return f"All {answers} answers are the target's own, token for token."
    return f"{counts['identical']} of {answers} answers are the target's own, token for token."


def _when(iso: str) -> str:
    """The date as people write it, with the hour of the machine that measured."""
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment.day} {moment:%B %Y, %H:%M}"


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer. leaves_at: the first token that is not its baseline's. divergences: position, margin, kind of each."""

    trial: Trial
    leaves_at: int | None
    divergences: list[tuple[int, float | None, str]]


def _answers(result: ComparisonResult) -> tuple[list[str], int]:
    """The HTML of each prompt's answers of the first round, those that diverge first; and how many have no room."""
    prompts: dict[str, dict[str, Trial]] = {}
    for trial in result.trials:
        if trial.round == 0:
            prompts.setdefault(trial.prompt, {})[trial.variant] = trial
    diverged = {each.prompt for each in result.divergences}
    blocks: list[str] = []
    room = _MAX_TEXTS
    best = result.verdict.variant
    for number, prompt in enumerate(sorted(prompts, key=lambda name: name not in diverged)):
        trials = prompts[prompt]
        variants = [each for each in result.variants if each.name in trials]
        answers = [_answer(result, trials[each.name], trials.get(each.baseline)) for each in variants]
        differing = (i for i, answer in enumerate(answers) if answer.divergences)
        drafted = (i for i, each in enumerate(variants) if each.name == best)
        block = render(
            "comparison_answers.html",
            number=number,
            shown=next(differing, next(drafted, 0)),
            prompt=prompt,
            asked=result.prompts.get(prompt),
            is_open=prompt in diverged,
            answers=answers,
            most_tokens=_MAX_TOKENS,
        )
        if len(block) <= room:
            room -= len(block)
            blocks.append(block)
    return blocks, len(prompts) - len(blocks)


def _answer(result: ComparisonResult, trial: Trial, baseline: Trial | None) -> _Answer:
    mine = (each for each in result.divergences if (each.variant, each.prompt) == (trial.variant, trial.prompt))
    places = {(each.position, each.margin, each.kind) for each in mine}
    return _Answer(
        trial,
        first_difference(trial.tokens, baseline.tokens) if baseline else None,
        sorted(places, key=lambda place: (place[0], place[1] or 0.0, place[2])),
    )


_PATHS: dict[str, Any] = dict.fromkeys(("target", "draft", "draft_small", "ngram_corpus"))


def _facts(result: ComparisonResult) -> tuple[dict[str, object], dict[str, str]]:
    """What all figures depend on, and what each variant has of its own; paths are left out, they may name the user."""
    own = {
        each.name: {**given_in(replace(each.settings, **_PATHS)), **each.settings.adapters} for each in result.variants
    }
    first = next(iter(own.values()), {})
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in own.values())}
    facts = {
        "platform": result.machine.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "build": result.build,
        "seed": result.seed,
        "models loaded in": f"{result.load_s:.2f} s",
        "every variant": _named(shared),
    }
    special = {
        variant: _named({name: value for name, value in settings.items() if name not in shared})
        for variant, settings in own.items()
    }
    return {**facts, **special}, special


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items() if value is not None)
