"""A pair as another engine is to serve it: its files or repositories, and the draft length that suits that engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.engine import tuning
from specdec_cli.engine.config import Settings
from specdec_cli.engine.model_pair import check_pair, setup_of_pair
from specdec_cli.llama import library
from specdec_cli.measure import acceptance_traces, hardware, originals
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.measure.simulate import WORTH_IT
from specdec_cli.measure.static_setting import StaticPolicy, StaticSetting, best_static
from specdec_cli.pairs import references, speeds
from specdec_cli.pairs.config_layers import merged, resolve

_SAMPLING = ("temp", "top_k", "top_p", "min_p")
_KNOWN = {"model", "ngram", "none"}
"""Drafters that other engines have, too."""
_USUAL = 4
"""Draft tokens where nothing is known."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """path: of the file, if it is here. reference: on the Hub, empty if it is not known. original: the maker's
    repository of the same weights, for engines that read no GGUF; empty if it is not known.
    """

    path: Path | None
    reference: str
    original: str

    @property
    def name(self) -> str:
        return self.path.stem if self.path else self.reference


@dataclass(frozen=True, slots=True)
class ServedPair:
    """ngram: draft from the text alone. tokens, min_p: of a draft; 0 tokens: the target alone. sampling, machine: what
    profile and command line ask for, by the names of settings. expected: what to expect, in sentences.
    """

    target: ServedModel
    draft: ServedModel | None
    ngram: bool
    tokens: int
    min_p: float
    sampling: dict[str, float]
    machine: dict[str, int]
    expected: tuple[str, ...]
    setting: StaticSetting | None = None


def served_pair(
    profile: str | None, given: dict[str, Any], policy: StaticPolicy, what_if: str | None = None
) -> ServedPair:
    """Find the models and choose the length for an engine. what_if: the name of another machine, whose costs count in
    place of those that were measured here.

    Raises UsageError on senseless values, SpecdecError on files that cannot be used.
    """
    named = merged(profile, given)[0]
    try:
        settings = resolve(profile, given)
    except DownloadError:
        settings = None
    chosen = settings or named
    if not set(chosen.chain.names) <= _KNOWN:
        raise UsageError(
            f"no engine drafts as {chosen.drafter} does here",
            "Export what draft models and n-grams can do: --drafter model, ngram or none.",
        )
    target = _model(settings.target if settings else "", named.target)
    draft = None
    if chosen.draft and named.draft and chosen.chain.needs_model:
        draft = _model(settings.draft or "" if settings else "", named.draft)
    sampling = {name: getattr(chosen, name) for name in _SAMPLING}
    machine = {name: getattr(chosen, name) for name in ("ctx", "threads", "gpu_layers", "gpu_layers_draft")}
    machine = {name: value for name, value in machine.items() if value is not None and value != -1}
    ngram = draft is None and "ngram" in chosen.chain.names
    pair = ServedPair(target, draft, ngram, _USUAL if draft or ngram else 0, 0.0, sampling, machine, ())
    if draft is None:
        if settings:
            check_pair(settings if settings.chain.needs_model else replace(settings, drafter="none"))
        return replace(pair, expected=("What n-gram drafts bring depends on the text, and is not predicted.",) * ngram)
    if settings is None:
        return replace(pair, expected=(_usual("specdec pull, then specdec tune"),))
    return _measured(pair, replace(settings, drafter="model", accept=policy.rule), policy, what_if)


def _measured(pair: ServedPair, settings: Settings, policy: StaticPolicy, what_if: str | None) -> ServedPair:
    """The same with the length that a recording and costs call for, as far as there are any."""
    checked = check_pair(settings)
    if checked.draft_path is None:
        raise UsageError("there is no draft model", "Name one with -md.")
    if checked.overlap is not None:
        raise SpecdecError("the draft has another tokenizer, which only specdec can use", "Name another one with -md.")
    paths, setup = (checked.target_path, checked.draft_path), setup_of_pair(checked, settings)
    path = recording_of(*paths, tuning.kind_of(settings.temp == 0, settings.accept), setup)
    if what_if:
        machine = hardware.load(what_if)
        costs, where = machine.costs, f"{machine.name} ({machine.basis} costs)"
    elif tuned := tuning.load(*paths, setup):
        costs, where = tuned.costs, f"this machine ({library.machine()})"
    else:
        path = None
    if path is None:
        sampled = ["--temp", f"{settings.temp:g}", "--accept", policy.rule] if settings.temp else ["--temp", "0"]
        command = ["specdec", "tune", "-m", str(paths[0]), "-md", str(paths[1]), *sampled]
        return replace(pair, expected=(_usual(shlex.join(command)),))
    recording = acceptance_traces.read(path)
    recording.require(*paths)
    found = best_static(recording.answers, costs, recording.greedy, policy)
    places = sum(len(answer.stands) for answer in recording.answers)
    basis = f"From {places:,} recorded places, with the costs of {where}:"
    said = (
        f"{basis} {found.tokens_per_s:,.1f} tokens/s at {found.tokens} draft tokens, {found.speedup:.2f}x the target "
        f"alone; specdec with -k auto {found.auto_speedup:.2f}x."
    )
    tokens = found.tokens
    if found.speedup < WORTH_IT:
        tokens = 0
        found = replace(found, tokens=0, min_p=0.0, tokens_per_s=found.alone_tokens_per_s)
        said = f"{basis} no fixed draft length pays, so the target is to run alone, at {found.alone_tokens_per_s:,.1f}"
        said += " tokens/s."
    compared = speeds.last_speed(*paths)
    more = [f"specdec compare measured {compared.speedup:.2f}x here ({compared.settings})."] if compared else []
    return replace(pair, tokens=tokens, min_p=found.min_p, expected=(said, *more), setting=found)


def _usual(how: str) -> str:
    return f"{_USUAL} draft tokens are only what is usual. To measure what suits this pair: {how}."


def _model(path: str, reference: str) -> ServedModel:
    known = reference if references.parse(reference) else ""
    return ServedModel(Path(path).absolute() if path else None, known, originals.original_of(reference))
