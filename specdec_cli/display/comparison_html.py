"""A comparison as one HTML page, for light and dark screens, phones and paper. It needs no network and no script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from specdec_cli.decoding.divergence import first_difference
from specdec_cli.decoding.statistics import Interval
from specdec_cli.display import comparison_tables as tables
from specdec_cli.display.pages import render, scripted_page
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.measure.trials import FEW_DRAFTS, Trial
from specdec_cli.settings.options import given_in

_MAX_TEXTS = 350_000
"""Characters of HTML for the answers. Prompts beyond this are left out; those with divergences come first."""
_MAX_TOKENS = 1500
_MAX_TICKS = 7
_FURTHEST = 2.5
"""How far an interval may widen the axis beyond the furthest mean, as a factor. The rest is cut off, with an arrow."""
_PARTS = ("draft", "verify", "sample", "other")


def page(result: ComparisonResult) -> str:
    answers, left_out = _answers(result)
    overall, verdict = result.of_category("all"), result.verdict
    intervals = {name: [each for each in result.of_category(name) if each.bounds] for name in result.categories}
    speedups = {name: summaries for name, summaries in intervals.items() if summaries}
    runners = [each for each in overall if each.tokens_per_s]
    details = {name: cells for name, *cells in tables.details_of(result)}
    facts, own = _facts(result)
    return scripted_page(
        "comparison",
        (),
        result=result,
        verdict=verdict,
        overall=overall,
        same=_same(result, verdict.variant),
        runners=runners,
        fastest=max((each.tokens_per_s for each in runners if each.tokens_per_s), default=0.0),
        models=" + ".join(model.file for model in result.models.values()),
        preamble=tables.preamble(result),
        warnings=tables.warnings(result),
        wrong=sum(each.kind == "wrong" for each in result.divergences),
        drafting=[summary for summary in overall if summary.variant in details],
        about={
            name: {"time": time, "answers": same, "settings": own.get(name)}
            for name, (same, _, time) in details.items()
        },
        speedups=speedups,
        axis=_Axis([each.speedup for summaries in speedups.values() for each in summaries if each.speedup]),
        longest_draft=max((len(each.per_position) for each in overall), default=0),
        timed=[each for each in overall if each.tpot_ms and each.shares],
        parts=_PARTS,
        columns=tables.COLUMNS,
        finding=tables.finding,
        summary_cells=tables.summary_cells,
        few_drafts=FEW_DRAFTS,
        answers=answers,
        left_out=left_out,
        facts={"measured": _when(result.when), "command": result.command, **facts},
    )


class _Axis:
    """A logarithmic axis of speedups, with room for 1, every mean, and the intervals unless they are absurdly wide."""

    def __init__(self, speedups: Sequence[Interval]) -> None:
        means = [1.0, *(speedup.mean for speedup in speedups)]
        lows = [speedup.low for speedup in speedups if speedup.low is not None]
        highs = [speedup.high for speedup in speedups if speedup.high is not None]
        low = max(min([*means, *lows]), min(means) / _FURTHEST)
        high = min(max([*means, *highs]), max(means) * _FURTHEST)
        room = max((high / low) ** 0.04, 1.02)
        self.low, self.high = low / room, high * room

    def place(self, value: float) -> float:
        """Where a speedup is, in % of the axis; at the nearer end if it is outside."""
        value = min(max(value, self.low), self.high)
        return round(100 * math.log(value / self.low) / math.log(self.high / self.low), 1)

    def ticks(self) -> list[float]:
        """Round numbers, including 1: multiples of a step, or powers if the range is wide."""
        low, high = self.low, self.high
        steps = () if high / low > 4 else (0.02, 0.05, 0.1, 0.25, 0.5)
        choices = [[i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps]
        for base in (2.0, 4.0, 16.0, 256.0):
            span = range(math.ceil(math.log(low, base)), math.floor(math.log(high, base)) + 1)
            choices.append([base**i for i in span])
        return next((choice for choice in choices if len(choice) <= _MAX_TICKS), [1.0])


def _same(result: ComparisonResult, variant: str | None) -> str:
    """How many of a variant's answers are the target's."""
    counts = result.exactness.get(variant or "", {})
    if not (answers := sum(counts.values())):
        return ""
    if counts["identical"] < answers:
        same = f"{counts['identical']} of {answers} answers of {variant} are"
    else:
        same = {1: f"The answer of {variant} is", 2: f"Both answers of {variant} are"}.get(
            answers, f"All {answers} answers of {variant} are"
        )
    return f"{same} the target's own, token for token."


def _when(iso: str) -> str:
    """The date in words, and the time on the machine that measured."""
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def _answers(result: ComparisonResult) -> tuple[list[str], int]:
    """The HTML of each prompt's answers in the first round, divergent ones first, and how many prompts don't fit."""
    prompts: dict[str, dict[str, Trial]] = {}
    for trial in result.trials:
        if trial.round == 0:
            prompts.setdefault(trial.prompt, {})[trial.variant] = trial
    diverged = {each.prompt for each in result.divergences}
    blocks: list[str] = []
    room = _MAX_TEXTS
    for number, prompt in enumerate(sorted(prompts, key=lambda name: name not in diverged)):
        trials = prompts[prompt]
        variants = [each for each in result.variants if each.name in trials]
        answers = [_answer(result, trials[each.name], trials.get(each.baseline)) for each in variants]
        differing = (i for i, answer in enumerate(answers) if answer["divergences"])
        best = (i for i, each in enumerate(variants) if each.name == result.verdict.variant)
        block = render(
            "comparison_answers.html",
            number=number,
            shown=next(differing, next(best, 0)),
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


def _answer(result: ComparisonResult, trial: Trial, baseline: Trial | None) -> dict[str, Any]:
    """leaves_at: the first token that differs from the baseline's. divergences: position, margin and kind of each."""
    mine = (each for each in result.divergences if (each.variant, each.prompt) == (trial.variant, trial.prompt))
    places = {(each.position, each.margin, each.kind) for each in mine}
    return {
        "trial": trial,
        "leaves_at": first_difference(trial.tokens, baseline.tokens) if baseline else None,
        "divergences": sorted(places, key=lambda place: (place[0], place[1] or 0.0, place[2])),
    }


_PATHS: dict[str, Any] = dict.fromkeys(("target", "draft", "draft_small", "ngram_corpus"))


def _facts(result: ComparisonResult) -> tuple[dict[str, object], dict[str, str]]:
    """What all figures depend on, and the settings of each variant. Paths are left out: they may name the user."""
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
