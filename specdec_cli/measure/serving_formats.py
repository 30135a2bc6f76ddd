"""A pair in the words of other engines: command lines, presets, model files; and what is lost there.

Their options: llama.cpp's common/arg.cpp, vLLM's SpeculativeConfig, SGLang's server arguments, LM Studio's
configuration keys (lmstudio-js, kv-config), Ollama's Modelfile parser.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from specdec_cli.decoding.errors import UsageError
from specdec_cli.measure.served_pair import ServedModel, ServedPair
from specdec_cli.measure.static_setting import LEAST_CONFIDENCE, StaticPolicy
from specdec_cli.pairs import references

_NOTHING = "All speculation."
_NGRAMS = "Its n-gram drafts are of its own kind, and of fixed lengths, also where none pays."
_REQUESTS = "Sampling is not exported: each request sets its own."
_NAMED = "its repositories follow from the names of the GGUF ones: look whether they are right"
_ALWAYS = "Its draft model runs at every step, also where no draft pays; specdec's rests there."
_FIXED = "Its draft length does not follow the text or the machine."
_OF_BATCHES = _ALWAYS, _FIXED, "No least confidence ends a draft.", "The weights are the maker's, not the GGUF's."
_MATCH = (
    "Its rule is that of --accept match: exact but for rounding, of which it says nothing, and at a temperature it "
    "accepts less than rejection."
)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """command: what starts the engine; empty where a window does. text: the content of its settings file."""

    command: str
    text: str


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """drafting: what its draft models lack beside specdec's. rule: what is to be said of its acceptance rule, or else
    of whatever it does. checked: how its words were checked.
    """

    title: str
    policy: StaticPolicy
    drafting: tuple[str, ...]
    rule: str
    checked: str
    write: Callable[[ServedPair], ServingSettings]

    def lost(self, pair: ServedPair) -> tuple[str, ...]:
        """What a pair loses there beside specdec."""
        if not (pair.ngram or pair.tokens) or not self.drafting:
            return (_NOTHING, self.rule)
        return (_NGRAMS, self.rule) if pair.ngram else (*self.drafting, self.rule)


def llama_server(pair: ServedPair) -> ServingSettings:
    options: list[tuple[str, object]] = [*_gguf(pair.target, "model", "hf-repo")]
    if pair.ngram:
        options.append(("spec-type", "ngram-simple"))
    elif pair.tokens and pair.draft:
        options += _gguf(pair.draft, "spec-draft-model", "spec-draft-hf")
        options += [("spec-type", "draft-simple"), ("spec-draft-n-max", pair.tokens), ("spec-draft-n-min", 0)]
        options.append(("spec-draft-p-min", pair.min_p))
    names = {"ctx": "ctx-size", "threads": "threads", "gpu_layers": "gpu-layers", "gpu_layers_draft": "spec-draft-ngl"}
    options += [
        (names[name], value)
        for name, value in pair.machine.items()
        if (pair.draft and pair.tokens) or name != "gpu_layers_draft"
    ]
    sampling = {"temp": "temp", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    options += [(sampling[name], value) for name, value in pair.sampling.items()]
    command = shlex.join(["llama-server", *(part for name, value in options for part in (f"--{name}", str(value)))])
    cut = next((value for _, value in options if set(str(value)) & set(";#")), None)
    if cut:
        raise UsageError(f"a preset of llama-server cannot name {cut}: it is cut at ; and #", "Rename the file.")
    section = ["version = 1", "", f"[{pair.target.name}]", *(f"{name} = {value}" for name, value in options)]
    return ServingSettings(command, "\n".join(section) + "\n")


def _gguf(model: ServedModel, path: str, repository: str) -> list[tuple[str, object]]:
    if model.path:
        return [(path, model.path)]
    found = references.parse(model.reference)
    if found and (quant := found.quant or references.quant_of(found.file)):
        return [(repository, f"{found.repo}:{quant}")]
    return [(repository, model.reference)]


def vllm(pair: ServedPair) -> ServingSettings:
    config: dict[str, object] = {"num_speculative_tokens": pair.tokens}
    if pair.ngram:
        config = {"method": "ngram", **config, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    else:
        draws = {"draft_sample_method": "probabilistic"}  # else its drafts are greedy, and accepted less
        config = {"method": "draft_model", "model": _original(pair.draft, "vLLM"), **config, **draws}
    parts = ["vllm", "serve", _original(pair.target, "vLLM")]
    parts += ["--speculative-config", json.dumps(config)] if pair.tokens else []
    parts += ["--max-model-len", str(pair.machine["ctx"])] if "ctx" in pair.machine else []
    return _shell(parts)


def sglang(pair: ServedPair) -> ServingSettings:
    parts = ["python", "-m", "sglang.launch_server", "--model-path", _original(pair.target, "SGLang")]
    if pair.ngram:
        parts += ["--speculative-algorithm", "NGRAM"]
    elif pair.tokens:
        parts += ["--speculative-algorithm", "STANDALONE"]
        parts += ["--speculative-draft-model-path", _original(pair.draft, "SGLang")]
        parts += ["--speculative-num-steps", str(pair.tokens), "--speculative-eagle-topk", "1"]
        parts += ["--speculative-num-draft-tokens", str(pair.tokens + 1)]
    parts += ["--context-length", str(pair.machine["ctx"])] if "ctx" in pair.machine else []
    return _shell(parts)


def lm_studio(pair: ServedPair) -> ServingSettings:
    """Of GGUF files the draft model is chosen as the target is loaded."""
    if pair.draft is None:
        raise UsageError("LM Studio drafts with a model alone, and there is none", "Name one with -md.")
    drafts = "llm.load.llama.speculativeDecoding."
    load: dict[str, object] = {}
    if pair.tokens:
        load = {"draftSimple": True, "draftModel": _listed(pair.draft)}
        load |= {"draftMaxTokens": pair.tokens, "draftMinTokens": 0, "draftMinContinueProbability": pair.min_p}
    values: dict[str, object] = {}
    sampling = {"temp": "temperature", "top_k": "topKSampling", "top_p": "topPSampling", "min_p": "minPSampling"}
    for name, value in pair.sampling.items():
        is_switch = name in ("top_p", "min_p")
        values[f"llm.prediction.{sampling[name]}"] = {"checked": True, "value": value} if is_switch else value
    name = f"specdec {pair.target.name}"
    preset = {
        "identifier": f"@local:{re.sub('[^a-z0-9]+', '-', name.lower())}",
        "name": name,
        "operation": {"fields": [{"key": key, "value": value} for key, value in values.items()]},
        "load": {"fields": [{"key": f"{drafts}{key}", "value": value} for key, value in load.items()]},
    }
    return ServingSettings("", json.dumps(preset, indent=2) + "\n")


def _listed(model: ServedModel) -> str:
    """How LM Studio lists a model: by its folders and its file, as far as they are known."""
    repo = found.repo if (found := references.parse(model.reference)) else ""
    file = model.path.name if model.path else found.file if found else ""
    return "/".join(filter(None, (repo, file)))


def ollama(pair: ServedPair) -> ServingSettings:
    """Without the draft: whatever DRAFT names, Ollama runs it as next-token layers."""
    _, source = _gguf(pair.target, "path", "repository")[0]
    lines = [f"FROM {source if pair.target.path else f'hf.co/{source}'}"]
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    lines += [f"PARAMETER {names[name]} {value}" for name, value in pair.sampling.items()]
    lines += [f"PARAMETER num_ctx {pair.machine['ctx']}"] if "ctx" in pair.machine else []
    return ServingSettings("", "\n".join(lines) + "\n")


def _original(model: ServedModel | None, engine: str) -> str:
    if model is None or not model.original:
        name = model.name if model else "the draft"
        what = f"{engine} reads no GGUF, and where {name} comes from is not known"
        raise UsageError(what, "Name the pair by a profile, or as REPO:QUANT.")
    return model.original


def _shell(parts: list[str]) -> ServingSettings:
    command = shlex.join(parts)
    return ServingSettings(command, f"#!/bin/sh\nexec {command}\n")


ENGINES = {
    "llama-server": ServingEngine(
        "llama.cpp's server",
        StaticPolicy(LEAST_CONFIDENCE, rereads=True, rule="match"),
        (_ALWAYS, _FIXED, "Its draft model reads again what the target verifies."),
        _MATCH,
        "the command was run with the llama.cpp of llama-cpp-python 0.3.36",
        llama_server,
    ),
    "vllm": ServingEngine(
        "vLLM",
        StaticPolicy((0.0,), rereads=False, rule="rejection"),
        _OF_BATCHES,
        _REQUESTS,
        f"its configuration passes the checks of vLLM 0.33.0; it was not run; {_NAMED}",
        vllm,
    ),
    "sglang": ServingEngine(
        "SGLang",
        StaticPolicy((0.0,), rereads=False, rule="match"),
        _OF_BATCHES,
        _REQUESTS,
        f"its options pass the parser of SGLang 0.5.23; it was not run; {_NAMED}",
        sglang,
    ),
    "lm-studio": ServingEngine(
        "LM Studio",
        StaticPolicy(LEAST_CONFIDENCE, rereads=True, rule="match"),
        (_ALWAYS, _FIXED, "N-gram drafts and trees are missing."),
        _MATCH,
        "its keys and values pass @lmstudio/sdk 2.0.0; it was not run; draftModel must be what `lms ls` lists",
        lm_studio,
    ),
    "ollama": ServingEngine(
        "Ollama",
        StaticPolicy((0.0,), rereads=True, rule="match"),
        (),
        "It drafts with next-token layers and DFlash models alone: use it as `ollama create NAME -f FILE`.",
        "its words stand in Ollama's parser of August 2026; it was not run",
        ollama,
    ),
}
