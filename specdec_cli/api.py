"""What a program can call. `specdec_cli` exports all of it; docs/python-reference.md is made from these docstrings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, cast

from specdec_cli.decoding.errors import DownloadError, UsageError
from specdec_cli.decoding.options import options_of
from specdec_cli.display import notebook
from specdec_cli.display.download_view import DownloadDisplay
from specdec_cli.engine.async_engine import AsyncEngine
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.measure import suites
from specdec_cli.measure.compare import ComparisonResult, ComparisonRun, require_exact
from specdec_cli.measure.tune import MeasuredTuning
from specdec_cli.measure.tune import tune as tune_pair
from specdec_cli.measure.variants import with_baselines
from specdec_cli.pairs import references
from specdec_cli.pairs.config_layers import merged, resolve
from specdec_cli.pairs.hub.download import DownloadProgress
from specdec_cli.pairs.pair_check import CONTEXT, PairCheck, check_pair_by_name
from specdec_cli.pairs.pair_download import DownloadResult, PairDownload
from specdec_cli.settings.options import ModelOptions, SamplingParams, SpeculativeConfig, given_in
from specdec_cli.settings.settings import Settings

_Given = ParamSpec("_Given")


def load(
    profile: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    draft_small: str | Path | None = None,
    speculative: SpeculativeConfig | None = None,
    sampling: SamplingParams | None = None,
    draft_window: int | None = None,
    ctx: int | None = None,
    threads: int | None = None,
    threads_draft: int | None = None,
    gpu_layers: int | None = None,
    gpu_layers_draft: int | None = None,
    lora: str | Path | Sequence[str | Path] | None = None,
    lora_draft: str | Path | Sequence[str | Path] | None = None,
    device: str | None = None,
    device_draft: str | None = None,
    tensor_split: str | None = None,
    rpc: str | None = None,
    rpc_insecure: bool | None = None,
    download: bool = False,
    progress: DownloadProgress | None = None,
) -> Engine:
    """Load a profile's pair, or a target and a draft; with neither, the bundled pair.

    Models are named as on the command line: a path, REPO:QUANT, REPO/FILE.gguf or a profile. Options that you don't set
    come from config.yaml, the profile, or the defaults. speculative, sampling: the defaults for calls. ctx: tokens of
    context; by default, as many as the longest prompt and answer so far need. download: pull models that aren't on this
    machine; progress: as in `pull`. The other arguments are the options of `specdec run` with the same names.

    Raises UsageError on invalid values, DownloadError if a model isn't on this machine or can't be pulled,
    IncompatiblePair if the tokenizers don't fit, SpecdecError on files that can't be used. Each has a `hint`.
    """
    given = {name: value for name, value in locals().items() if name in options_of(ModelOptions)}
    models = {name: str(path) if isinstance(path, Path) else path for name, path in given.items()}
    named = {**models, **given_in(sampling, speculative)}
    try:
        settings = resolve(profile, named)
    except DownloadError:
        if not download:
            raise
        _pull_missing(profile, named, progress)
        settings = resolve(profile, named)
    variants = [settings, replace(settings, drafter="ngram")] if speculative and speculative.ngram_corpus else []
    return Engine(settings, accept=cast("str | None", speculative.accept if speculative else None), variants=variants)


def _pull_missing(profile: str | None, named: dict[str, Any], progress: DownloadProgress | None) -> None:
    """Pull the models of some settings, from whatever layer they come."""
    wanted = merged(profile, named).settings
    if profile and not (named["target"] or named["draft"]):
        pull(profile, translate=True, progress=progress)
    else:
        pull(target=wanted.target, draft=wanted.draft, translate=True, progress=progress)
    if wanted.draft_small and references.parse(wanted.draft_small):
        pull(target=wanted.draft_small, progress=progress)


def _in_thread(load: Callable[_Given, Engine]) -> Callable[_Given, Coroutine[None, None, AsyncEngine]]:
    async def load_async(*args: _Given.args, **kwargs: _Given.kwargs) -> AsyncEngine:
        """Load a pair as `load` does, in a thread, for an asyncio program."""
        return AsyncEngine(await asyncio.to_thread(load, *args, **kwargs))

    return load_async


load_async = _in_thread(load)


def check(target: str | Path, draft: str | Path | None = None, *, ctx: int = CONTEXT) -> PairCheck:
    """Compare two models by their headers, which for models on the Hub downloads no weights: the tokenizers, the
    sizes, the memory that they need with `ctx` tokens of context, and whether the pair is likely to pay.

    target, draft: as in `load`; without a draft, the target names a profile with both. A pair that doesn't fit is a
    result (`verdict`), not an error. Raises UsageError on wrong names, DownloadError if the Hub fails, SpecdecError if
    a file isn't a model.
    """
    return check_pair_by_name(str(target), None if draft is None else str(draft), ctx)


def pull(
    profile: str | None = None,
    *,
    target: str | None = None,
    draft: str | None = None,
    name: str | None = None,
    verify: bool = False,
    translate: bool = False,
    progress: DownloadProgress | None = None,
) -> DownloadResult:
    """Download a profile's pair, or a target and, if given, a draft. An interrupted download continues.

    name: for the pair, so that `load` finds it; by default from its files. verify: compute the checksums of files that
    are here already. translate: accept a draft with another tokenizer. progress: called with a file's repository and
    name ("org/repo/file.gguf"), its state ("begin", "fetch", "wait", "check" or "done") and the bytes on this machine;
    by default, progress appears as bars in a notebook or on a terminal, otherwise as lines on stderr.

    Raises UsageError on wrong names, IncompatiblePair before any weights are fetched, DownloadError if the Hub fails or
    the disk is full.
    """
    download = PairDownload(profile, target, draft, name, verify)
    if result := download.existing():
        return result
    if download.needs_draft:
        download.choose(None)
    plan = download.plan()
    if not translate:
        plan.require_same_tokenizers("pass translate=True")
    if progress is not None:
        return download.run(plan, progress)
    with notebook.DownloadBars(plan.sizes) if notebook.is_running() else DownloadDisplay(plan.sizes) as display:
        return download.run(plan, display)


def compare(
    engine: Engine,
    prompts: str | Sequence[str],
    variants: Mapping[str, SpeculativeConfig] | None = None,
    sampling: SamplingParams | None = None,
    *,
    rounds: int = 2,
    system: str | None = None,
    raw: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ComparisonResult:
    """Measure variants against the target alone with the same sampling: in turn on every prompt, in reverse order in
    each second round.

    prompts: texts, or the name of a suite or of a file of prompts. variants: by name; by default the engine's own
    settings. sampling: for all of them, the target alone included. rounds: on each prompt; it takes two to show the
    machine's noise. progress: called with the number of answers so far and of all.

    Raises UsageError on invalid values, SpecdecError if no prompt fits the context, if an answer that should be the
    target's own differs by more than rounding, or if llama.cpp fails.
    """
    if not prompts:
        raise UsageError("there are no prompts to compare on", "Pass texts, or the name of a suite.")
    chosen = suites.load(prompts) if isinstance(prompts, str) else suites.choose_prompts("", prompts)
    with closing(engine.session()) as session:
        base = session.settings_of(sampling, None)
        named = {name: session.settings_of(sampling, config) for name, config in (variants or {}).items()}
        named = named or {f"{base.drafter}, k={base.draft_tokens}": base}
        run = ComparisonRun(base, with_baselines(base, named), rounds)
        result = run.run(session, chosen, system, raw, progress or (lambda *_: None))
    if run.error:
        raise run.error
    require_exact(result)
    return result


def tune(
    profile: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    suite: str | None = None,
    sampling: SamplingParams | None = None,
    seconds: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> MeasuredTuning:
    """Measure a pair on this machine, predict its speedup, and keep both for later engines.

    profile, target, draft: as in `load`. suite: of prompts, by default a mixture. sampling: the kind of sampling to
    measure. seconds: roughly how long. progress: called with the present stage.

    Raises UsageError on invalid values and pairs without a draft model, SpecdecError if llama.cpp fails.
    """
    models = {"target": target and str(target), "draft": draft and str(draft)}
    settings: Settings = resolve(profile, {**models, **given_in(sampling)})
    return tune_pair(settings, suite, seconds=seconds, progress=progress or (lambda _: None))


# Notebooks ask a value for its HTML. Only here are both the results and the displays known.
GenerationResult._repr_html_ = notebook.answer
ComparisonResult._repr_html_ = notebook.comparison
