"""A comparison as one HTML page that needs no network and no script, for screens light and dark, phones and paper."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from specdec_cli.decoding.divergence import first_difference
from specdec_cli.display import charts
from specdec_cli.display import comparison_tables as tables
from specdec_cli.display.templates import render
from specdec_cli.measure.comparison_result import ComparisonResult
from specdec_cli.measure.summaries import FEW_DRAFTS
from specdec_cli.measure.trials import Trial

_MAX_TEXTS = 350_000
"""Characters of HTML for the answers; prompts beyond are left out, those with divergences last."""
_MAX_TOKENS = 1500


def page(result: ComparisonResult) -> str:
    answers, left_out = _answers(result)
    overall, verdict = result.of_category("all"), result.verdict
    details = {name: cells for name, *cells in tables.details_of(result)}
    facts, own = _facts(result)
    return render(
        "comparison.html",
        result=result,
        verdict=verdict,
        overall=overall,
        same=_same(result, verdict.arm),
        lanes=_lanes(result),
        when=_when(result.when),
        colours=charts.COLOURS,
        models=" + ".join(model.file for model in result.models.values()),
        preamble=tables.preamble(result),
        warnings=tables.warnings(result),
        wrong=sum(each.kind == "wrong" for each in result.divergences),
        drafting=[summary for summary in overall if summary.arm in details],
        about={
            arm: {"time": time, "answers": same, "settings": own.get(arm)} for arm, (same, _, time) in details.items()
        },
        charts=charts.charts(result),
        wide=charts.WIDE,
        narrow=charts.NARROW,
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

    arm: str
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
        kind = "best" if each.arm == result.verdict.winner else "drafts" if speedup else "alone"
        ratio = "" if each.speedup and not speedup else f"{mean:.2f}x"
        speed = f"{each.tokens_per_s:,.1f} tok/s"
        lanes.append(_Lane(each.arm, kind, round(100 * mean / longest, 1), bounds, ratio, speed))
    return lanes


def _same(result: ComparisonResult, arm: str | None) -> str:
    """How many of the best variant's answers are the target's own."""
    counts = result.exactness.get(arm or "", {})
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
            prompts.setdefault(trial.prompt, {})[trial.arm] = trial
    diverged = {each.prompt for each in result.divergences}
    blocks: list[str] = []
    room = _MAX_TEXTS
    best = result.verdict.arm
    for number, prompt in enumerate(sorted(prompts, key=lambda name: name not in diverged)):
        trials = prompts[prompt]
        arms = [arm for arm in result.arms if arm.name in trials]
        answers = [_answer(result, trials[arm.name], trials.get(arm.baseline)) for arm in arms]
        differing = (i for i, answer in enumerate(answers) if answer.divergences)
        drafted = (i for i, arm in enumerate(arms) if arm.name == best)
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
    mine = (each for each in result.divergences if (each.arm, each.prompt) == (trial.arm, trial.prompt))
    places = {(each.position, each.margin, each.kind) for each in mine}
    return _Answer(
        trial,
        first_difference(trial.tokens, baseline.tokens) if baseline else None,
        sorted(places, key=lambda place: (place[0], place[1] or 0.0, place[2])),
    )


_PATHS = dict.fromkeys(("target", "draft", "draft_small", "ngram_corpus"))


def _facts(result: ComparisonResult) -> tuple[dict[str, object], dict[str, str]]:
    """What all figures depend on, and what each variant has of its own; paths are left out, they may name the user."""
    own = {arm.name: {**asdict(replace(arm.settings, **_PATHS)), **arm.settings.adapters} for arm in result.arms}
    first = next(iter(own.values()), {})
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in own.values())}
    facts = {
        "platform": result.machine.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "build": result.build,
        "seed": result.seed,
        "models loaded in": f"{result.load_s:.2f} s",
        "every arm": _named(shared),
    }
    special = {
        arm: _named({name: value for name, value in settings.items() if name not in shared})
        for arm, settings in own.items()
    }
    return {**facts, **special}, special


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items() if value is not None)
