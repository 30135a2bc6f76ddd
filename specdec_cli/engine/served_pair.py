"""A pair as another engine is to serve it: its files or repositories, and the draft length that suits that engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.engine.config import Settings
from specdec_cli.engine.config_layers import resolve
from specdec_cli.engine.model_pair import check_pair, setup_of_pair
from specdec_cli.evaluation.prediction import WORTH_IT
from specdec_cli.evaluation.static_setting import StaticPolicy, StaticSetting, best_static
from specdec_cli.llama import library
from specdec_cli.models import hardware, originals, profiles
from specdec_cli.store import acceptance_traces, tuning

_SAMPLING = ("temp", "top_k", "top_p", "min_p")
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
    try:
        settings = resolve(profile, given)
    except DownloadError:
        return _elsewhere(profile, given)
    named = profiles.load(profile) if profile else None
    target = _model(settings.target, named.target if named else str(given.get("target") or ""))
    draft = None
    wants_model = given.get("drafter") in (None, "auto") or settings.chain.needs_model
    if settings.draft and wants_model and not settings.chain.head:
        draft = _model(settings.draft, (named.draft or "") if named else str(given.get("draft") or ""))
    sampling = {name: getattr(settings, name) for name in _SAMPLING}
    machine = {name: getattr(settings, name) for name in ("ctx", "threads", "gpu_layers", "gpu_layers_draft")}
    machine = {name: value for name, value in machine.items() if value is not None and value != -1}
    pair = ServedPair(target, draft, draft is None, _USUAL, 0.0, sampling, machine, ())
    if draft is None:
        check_pair(replace(settings, drafter="ngram"))
        return replace(pair, expected=("What n-gram drafts bring depends on the text, and is not predicted.",))
    return _measured(pair, replace(settings, drafter="model", accept=policy.rule), policy, what_if)


def _measured(pair: ServedPair, settings: Settings, policy: StaticPolicy, what_if: str | None) -> ServedPair:
    """The same with the length that a recording and costs call for, as far as there are any."""
    checked = check_pair(settings)
    if checked.draft_path is None:
        raise UsageError("there is no draft model", "Name one with -md.")
    if checked.overlap is not None:
        raise SpecdecError("the draft has another tokenizer, which only specdec can use", "Name another one with -md.")
    paths, setup = (checked.target_path, checked.draft_path), setup_of_pair(checked, settings)
    path = tuning.recording_of(*paths, tuning.kind_of(settings.temp == 0, settings.accept), setup)
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
        f"alone; specdec with -k auto {found.auto_tokens_per_s / found.alone_tokens_per_s:.2f}x."
    )
    tokens = found.tokens
    if found.speedup < WORTH_IT:
        tokens = 0
        said = f"{basis} no fixed draft length pays, so the target is to run alone, at {found.alone_tokens_per_s:,.1f}"
        said += " tokens/s."
    compared = tuning.last_speed(*paths)
    more = [f"specdec compare measured {compared.speedup:.2f}x here ({compared.settings})."] if compared else []
    return replace(pair, tokens=tokens, min_p=found.min_p, expected=(said, *more), setting=found)


def _usual(how: str) -> str:
    return f"{_USUAL} draft tokens are only what is usual. To measure what suits this pair: {how}."


def _elsewhere(profile: str | None, given: dict[str, Any]) -> ServedPair:
    """A pair that is not on this machine: by its references alone."""
    named = profiles.load(profile) if profile else None
    target, draft = (named.target, named.draft) if named else (str(given.get("target")), given.get("draft"))
    asks = {**(named.settings if named else {}), **{name: value for name, value in given.items() if value is not None}}
    sampling = {name: asks[name] for name in _SAMPLING if name in asks}
    ngram = draft is None or asks.get("drafter") == "ngram"
    machine = {name: asks[name] for name in ("ctx", "threads") if name in asks}
    models = _model("", target), None if ngram or draft is None else _model("", str(draft))
    return ServedPair(*models, ngram, _USUAL, 0.0, sampling, machine, (_usual("specdec pull, then specdec tune"),))


def _model(path: str, reference: str) -> ServedModel:
    known = reference if originals.original_of(reference) or not path else ""
    return ServedModel(Path(path).absolute() if path else None, known, originals.original_of(reference))
