"""The result of a comparison from its trials."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from specdec_cli import __version__
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.rules import REPRODUCIBLE
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.model_pair import ModelPair
from specdec_cli.engine.variants import Variant
from specdec_cli.evaluation import advice
from specdec_cli.evaluation import comparison_result as types
from specdec_cli.evaluation.recorded_settings import RecordedSettings
from specdec_cli.evaluation.statistics import Summary, noise, summarise
from specdec_cli.evaluation.trials import Trial
from specdec_cli.llama import library
from specdec_cli.models import memory


def result_of(
    engine: Engine,
    variants: Mapping[str, Variant],
    trials: Sequence[Trial],
    divergences: Sequence[types.DivergentAnswer],
    *,
    threads: int,
    error: SpecdecError | None,
    **about: Any,
) -> types.ComparisonResult:
    """All that the trials show. about: further fields of the result."""
    categories = sorted({trial.category for trial in trials})
    summaries = [
        summary
        for category in ["all", *(categories if len(categories) > 1 else [])]
        for each in variants.values()
        if (summary := summarise(trials, each.name, each.baseline, category))
    ]
    overall = {summary.arm: summary for summary in summaries if summary.category == "all"}
    costs = advice.costs_of(trials)
    devices = tuple(types.DeviceInfo(**asdict(device)) for device in library.devices())
    experts = experts if isinstance(experts := engine.pair.target.setting("expert_count"), int) else 0
    return types.ComparisonResult(
        specdec=__version__,
        machine=types.MachineInfo(devices, threads, platform.platform()),
        versions={"python": platform.python_version(), **library.versions()},
        build=library.build_flags(),
        models=_models(engine.pair, engine.models.target.opened.n_ctx),
        experts=experts,
        context=engine.models.target.opened.n_ctx,
        corpus=len(engine.drafting.corpus) if engine.drafting.corpus else None,
        load_s=engine.load_s,
        max_tokens=engine.settings.max_tokens,
        notes=(*engine.notes, *_notes(trials), *([str(error)] if error else [])),
        rounding=str(engine.costs.agreement) if engine.costs.agreement else None,
        arms=tuple(types.VariantInfo(each.name, each.baseline, _recorded(each.settings)) for each in variants.values()),
        noise={name: noise(trials, name) for name, each in variants.items() if each.is_baseline},
        costs=types.CostPoints.of(costs) if costs else None,
        summaries=tuple(summaries),
        exactness=_exactness(variants, trials, divergences),
        divergences=tuple(divergences),
        verdicts={
            name: tuple(advice.verdict(summary, trials, costs, _speedups_like(name, variants, overall), experts))
            for name, summary in overall.items()
            if not variants[name].is_baseline
        },
        trials=tuple(trials),
        **about,
    )


def differing(variants: Mapping[str, Variant], trials: Sequence[Trial]) -> list[tuple[int, int]]:
    """Which trials should have their baseline's very tokens and do not; each with the baseline's first one."""
    first = {(trials[i].arm, trials[i].prompt): i for i in reversed(range(len(trials)))}
    return [
        (i, own)
        for i, trial in enumerate(trials)
        if _comparable(variants[trial.arm].settings)
        and (own := first.get((variants[trial.arm].baseline, trial.prompt))) is not None
        and trial.tokens != trials[own].tokens
    ]


def _comparable(settings: Settings) -> bool:
    """Whether these settings must give the baseline's very tokens."""
    return settings.temp == 0 or settings.accept in REPRODUCIBLE or settings.drafter == "none"


def _exactness(
    variants: Mapping[str, Variant], trials: Sequence[Trial], divergences: Sequence[types.DivergentAnswer]
) -> dict[str, dict[str, int]]:
    """Per variant: answers identical to the baseline's, ones that rounding made differ, wrong ones, and ones not
    looked into before an interrupt; nothing for variants that are not comparable.
    """
    answers = Counter(trial.arm for trial in trials)
    different = Counter(trials[i].arm for i, _ in differing(variants, trials))
    kinds = Counter((each.arm, each.kind) for each in divergences)
    return {
        name: {
            "identical": answers[name] - different[name],
            "rounding": kinds[name, "rounding"],
            "wrong": kinds[name, "wrong"],
            "not classified": different[name] - kinds[name, "rounding"] - kinds[name, "wrong"],
        }
        for name, variant in variants.items()
        if not variant.is_baseline and _comparable(variant.settings)
    }


def _speedups_like(
    name: str, variants: Mapping[str, Variant], overall: Mapping[str, Summary]
) -> dict[int, float] | None:
    """The measured speedup at each fixed draft length, of the variants that differ from one in nothing else; None if
    its own length adapts.
    """
    settings = variants[name].settings
    if not isinstance(settings.draft_tokens, int):
        return None
    return {
        k: summary.speedup.mean
        for other, summary in overall.items()
        if isinstance(k := variants[other].settings.draft_tokens, int)
        and replace(variants[other].settings, draft_tokens=settings.draft_tokens) == settings
        and summary.speedup
    }


def _notes(trials: Sequence[Trial]) -> list[str]:
    counted = Counter((trial.arm, note) for trial in trials for note in trial.notes)
    answers = Counter(trial.arm for trial in trials)
    return [f"{arm}: in {count} of {answers[arm]} answers {note}" for (arm, note), count in counted.items()]


def _recorded(settings: Settings) -> RecordedSettings:
    """All settings; a corpus only where it is looked into, for there alone it changes anything."""
    corpus = settings.ngram_corpus if settings.chain.reads_corpus else ()
    return RecordedSettings(**{**asdict(settings), "ngram_corpus": corpus or None})


def _models(pair: ModelPair, n_ctx: int) -> dict[str, types.ModelInfo]:
    models = {"target": (pair.target, pair.target_path), "draft": (pair.draft, pair.draft_path)}
    return {
        role: types.ModelInfo(path.name, header.n_params, header.size, memory.cache_bytes(header, n_ctx))
        for role, (header, path) in models.items()
        if header and path
    }
