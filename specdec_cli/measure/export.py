"""`specdec export`: a pair's settings for another engine, the best draft length there, and what the engine lacks.

The engines' options: llama.cpp's common/arg.cpp, vLLM's SpeculativeConfig, SGLang's server arguments.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.decoding.options import SamplingOptions, options_of
from specdec_cli.gguf.vocabulary import Vocabulary
from specdec_cli.llama import library
from specdec_cli.llama.adapter import Adapter
from specdec_cli.measure import acceptance_traces, hardware
from specdec_cli.measure.hardware import Hardware
from specdec_cli.measure.simulate import (
    MIN_CONFIDENCE,
    WORTH_IT,
    StaticPolicy,
    StaticSetting,
    best_static,
    n_recorded,
)
from specdec_cli.pairs import references, speeds
from specdec_cli.pairs.config_layers import merged, resolve
from specdec_cli.settings.options import OPTIONS, flag_of
from specdec_cli.settings.settings import Settings
from specdec_cli.user_files import expanded
from specdec_cli.weights import tuning
from specdec_cli.weights.model_pair import check_pair, setup_of_pair

_KNOWN = {"model", "ngram", "none"}
"""Drafters that other engines also have."""
_USUAL = 4
"""Draft tokens if nothing was measured."""
_UNMEASURED = f"{_USUAL} draft tokens are only the usual number: the best one for this pair hasn't been measured."
_OWN = {"Q4_K", "Q6_K"}
_OTHER_BUILDS = "Other builds of llama.cpp take longer here: specdec has kernels of its own for Q4_K and Q6_K weights."
_NAMED = "the repository names are derived from those of the GGUF files, so check them"
_OF_DRAFT_MODELS = (
    "Its draft model runs at every step, even where drafting doesn't pay; specdec stops drafting there.",
    "Its draft length doesn't adapt to the text or the machine.",
)
_NGRAMS = "It drafts n-grams in its own way and with a fixed length, even where drafting doesn't pay."
_OF_BATCHES = (
    *_OF_DRAFT_MODELS,
    "It has no minimum confidence below which a draft ends.",
    "It loads the maker's weights, not the GGUF file's.",
)
_LLAMA_NAMES = {
    **{"temperature": "temp", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"},
    **{"repeat_penalty": "repeat-penalty", "repeat_last_n": "repeat-last-n"},
    **{"frequency_penalty": "frequency-penalty", "presence_penalty": "presence-penalty"},
    **{"ctx": "ctx-size", "threads": "threads", "gpu_layers": "gpu-layers", "gpu_layers_draft": "spec-draft-ngl"},
    **{"lora": "lora-scaled", "chat_template_kwargs": "chat-template-kwargs"},
}
_UNEXPORTED = (
    *("lora_draft", "threads_draft", "device", "device_draft", "tensor_split", "rpc"),
    *("tree", "draft_window", "ngram_corpus"),
)
_UNSET = {"gpu_layers": -1, "gpu_layers_draft": -1, "tree": 1}
"""What these settings are if the engine is to choose, or does nothing else."""

_CONVERTERS = {"bartowski", "unsloth", "ggml-org", "lmstudio-community", "mradermacher", "TheBloke"}
"""Owners of repositories with GGUF files of other makers' models. Any other owner counts as the maker."""
_MAKERS = {
    "DeepSeek-": "deepseek-ai",
    "Llama-3": "meta-llama",
    "Meta-Llama-3": "meta-llama",
    "Qwen": "Qwen",
    "SmolLM": "HuggingFaceTB",
    "gemma-": "google",
    "gpt-oss-": "openai",
}
"""Makers by the beginnings of their models' names."""


@dataclass(frozen=True, slots=True)
class Export:
    """command: starts the engine. text: its settings file. expected: the speed to expect; lost: what specdec has and
    the engine lacks; both in sentences. checked: how the options were checked. measure: the command that measures the
    best length, if nothing was measured.
    """

    engine: str
    command: str
    text: str
    setting: StaticSetting | None
    expected: tuple[str, ...]
    lost: tuple[str, ...]
    checked: str
    measure: str = ""


@dataclass(frozen=True, slots=True)
class _Model:
    """path: the file, if it's on this machine. reference: the model on the Hub, if it's known."""

    path: Path | None
    reference: str

    @property
    def name(self) -> str:
        return self.path.stem if self.path else self.reference


@dataclass(frozen=True, slots=True)
class _Pair:
    """Without a draft model, n-grams draft. tokens: the draft length; 0: the target runs alone. options: the settings
    by name. measure: as in `Export`. vocabularies: the sizes of both, if the files are on this machine.
    """

    target: _Model
    draft: _Model | None
    tokens: int
    options: dict[str, Any]
    expected: tuple[str, ...] = ()
    setting: StaticSetting | None = None
    measure: str = ""
    vocabularies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """takes: the settings that it can be given. draft_models: what the engine lacks for draft models. rule: about its
    acceptance rule. write: returns its command and its settings file. any_vocabulary: whether the vocabularies may
    differ in size.
    """

    policy: StaticPolicy
    takes: Collection[str]
    draft_models: tuple[str, ...]
    rule: str
    checked: str
    write: Callable[[_Pair], tuple[str, str]]
    any_vocabulary: bool = True


def export(name: str, profile: str | None, given: dict[str, Any], what_if: str | None = None) -> Export:
    """A pair's settings for an engine. given: options of the command line. what_if: the name of another machine, whose
    costs replace those that were measured here.

    Raises UsageError on invalid values, SpecdecError on files that can't be used.
    """
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}", f"Engines: {', '.join(ENGINES)}.")
    engine = ENGINES[name]
    pair = _pair(profile, given, engine.policy, hardware.load(what_if) if what_if is not None else None)
    lost = engine.draft_models if pair.draft else (_NGRAMS,)
    if not pair.tokens:
        lost = ("It doesn't draft: the target runs alone.",)
    drafts = pair.draft and pair.tokens
    pair = replace(pair, options={k: v for k, v in pair.options.items() if drafts or not k.endswith("_draft")})
    left_out = [f"--{flag_of(name)}" for name in pair.options if name not in engine.takes]
    if drafts and not engine.any_vocabulary:
        lost = (*_refused(pair.vocabularies), *lost)
    lost = (*lost, engine.rule, *([f"These settings aren't exported: {', '.join(left_out)}."] if left_out else []))
    return Export(name, *engine.write(pair), pair.setting, pair.expected, lost, engine.checked, pair.measure)


def _refused(vocabularies: tuple[int, ...]) -> list[str]:
    """Whether an engine that wants vocabularies of one size refuses a pair, in a sentence."""
    if not vocabularies:
        return ["It refuses a draft model with another vocabulary size, even if only padding differs."]
    target, draft = vocabularies
    said = f"It refuses this pair: the target has {target:,} tokens, the draft {draft:,}. Use --drafter ngram."
    return [said] if target != draft else []


def _pair(profile: str | None, given: dict[str, Any], policy: StaticPolicy, machine: Hardware | None) -> _Pair:
    """The models, and the draft length for an engine."""
    named = merged(profile, given).settings
    try:
        here = resolve(profile, given)
    except DownloadError:
        here = None
    chosen = here or named
    if not set(chosen.cascade.names) <= _KNOWN:
        raise UsageError(
            f"no other engine has the drafter {chosen.drafter}",
            "Use --drafter model, ngram or none.",
        )
    target = _model(here.target if here else None, named.target)
    given_settings = {name: getattr(chosen, name) for name in (*_LLAMA_NAMES, *_UNEXPORTED)}
    options = {
        name: value
        for name, value in given_settings.items()
        if value is not None and value not in ((), {}) and value != _UNSET.get(name)
    }
    if not (chosen.draft and named.draft and chosen.cascade.needs_model):
        if here:
            check_pair(here if here.cascade.needs_model else replace(here, drafter="none"))
        if "ngram" not in chosen.cascade.names:
            return _Pair(target, None, 0, options)
        said = "The speedup of n-gram drafts depends on the text, so it isn't predicted."
        return _Pair(target, None, _USUAL, options, (said,))
    pair = _Pair(target, _model(here.draft if here else None, named.draft), _USUAL, options)
    tune = _tune(profile, {**given, "temperature": chosen.temperature}, policy)
    if here is None:
        measure = f"{shlex.join(['specdec', 'pull', profile])} && {tune}" if profile else ""
        return replace(pair, expected=(_UNMEASURED,), measure=measure)
    found = _measured(pair, replace(here, drafter="model", accept=policy.rule), policy, machine)
    return found if found.setting else replace(found, expected=(_UNMEASURED,), measure=tune)


def _tune(profile: str | None, given: dict[str, Any], policy: StaticPolicy) -> str:
    """The command that records what an engine needs, with the same adapters and devices."""
    options = {**given, "drafter": None, "accept": policy.rule if given["temperature"] else None}
    words = ["-p", profile] if profile else []
    for name, value in options.items():
        words += [OPTIONS[name].short or f"--{flag_of(name)}", str(value)] if value is not None else []
    return shlex.join(["specdec", "tune", *words])


def _measured(pair: _Pair, settings: Settings, policy: StaticPolicy, machine: Hardware | None) -> _Pair:
    """The same with the best length by a recording and costs, if there are both."""
    checked = check_pair(settings)
    if checked.overlap is not None:
        raise SpecdecError("the draft has another tokenizer, which only specdec supports", "Name another with -md.")
    paths, setup = checked.paths, setup_of_pair(checked, settings)
    sizes = tuple(len(Vocabulary(header)) for header in (checked.target, checked.draft) if header)
    pair = replace(pair, vocabularies=sizes)
    path = acceptance_traces.recording_of(*paths, tuning.kind_of(settings.temperature == 0, settings.accept), setup)
    if machine:
        costs, where = machine.costs, f"{machine.name} ({machine.basis} costs)"
    elif (tuned := tuning.load(*paths, setup)) and tuned.machine == library.machine():
        costs, where = tuned.costs, f"this machine ({library.machine()})"
    else:
        path = None
    if path is None:
        return pair
    recording = acceptance_traces.read(path)
    recording.require(*paths)
    found = best_static(recording.answers, costs, recording.greedy, policy)
    said = f"From {n_recorded(recording.answers):,} recorded tokens, with the costs of {where}:"
    if found.speedup < WORTH_IT:
        found = replace(found, tokens=0, min_p=0.0, tokens_per_s=found.alone_tokens_per_s)
        said += f" no fixed draft length pays, so the target runs alone, at {found.tokens_per_s:,.1f} tokens/s."
    else:
        said += f" {found.tokens_per_s:,.1f} tokens/s at {found.tokens} draft tokens, {found.speedup:.2f}x the target"
        said += f" alone; specdec with -k auto {found.auto_speedup:.2f}x."
    compared, expected = speeds.last_speed(*paths, setup), [said]
    types = {tensor.type for header in (checked.target, checked.draft) if header for tensor in header.tensors}
    if not machine and types & _OWN and library.has_own_kernels():
        expected.append(_OTHER_BUILDS)
    if compared and compared.claimed:
        expected.append(f"specdec compare measured {compared.speedup:.2f}x here ({compared.settings}).")
    return replace(pair, tokens=found.tokens, expected=tuple(expected), setting=found)


def _model(path: str | None, reference: str) -> _Model:
    return _Model(Path(path).absolute() if path else None, str(references.parse(reference) or ""))


def _llama_server(pair: _Pair) -> tuple[str, str]:
    options = _gguf(pair.target, "model", "hf-repo", "hf-file")
    if pair.tokens and pair.draft:
        options += _gguf(pair.draft, "spec-draft-model", "spec-draft-hf", "spec-draft-model")
        options += [("spec-type", "draft-simple")]
        options += [("spec-draft-n-max", pair.tokens), ("spec-draft-n-min", 0)]
        options.append(("spec-draft-p-min", pair.setting.min_p if pair.setting else 0.0))
    elif pair.tokens:
        options.append(("spec-type", "ngram-simple"))
    values = {**pair.options, "lora": _scaled(pair.options.get("lora", ()))}
    options += [(_LLAMA_NAMES[name], values[name]) for name in pair.options if name in _LLAMA_NAMES]
    cut = next((value for _, value in options if set(str(value)) & set(";#")), None)
    if cut:
        raise UsageError(
            f"a preset of llama-server can't hold {cut}: it would be cut at ; and #",
            "Rename or leave it out.",
        )
    command = shlex.join(["llama-server", *(part for name, value in options for part in (f"--{name}", str(value)))])
    preset = ["version = 1", "", f"[{pair.target.name}]", *(f"{name} = {value}" for name, value in options)]
    return command, "\n".join(preset) + "\n"


def _scaled(adapters: tuple[str, ...]) -> str:
    """Adapters as FILE:SCALE,FILE:SCALE. Raises UsageError for a path that llama-server would cut."""
    found = [replace(each, path=expanded(str(each.path)).absolute()) for each in map(Adapter.parse, adapters)]
    if cut := next((each.path for each in found if set(str(each.path)) & set(':,"')), None):
        raise UsageError(f"llama-server would cut the adapter's path {cut} at : , or \"", "Rename it.")
    return ",".join(map(str, found))


def _gguf(model: _Model, path: str, repository: str, file: str) -> list[tuple[str, object]]:
    """The options that name a model, with these names, and their values."""
    if model.path:
        return [(path, model.path)]
    found = references.parse(model.reference)
    if found and found.file:
        return [(repository, found.repo), (file, found.file)]
    return [(repository, model.reference)]


def _vllm(pair: _Pair) -> tuple[str, str]:
    config: dict[str, object] = {"num_speculative_tokens": pair.tokens}
    if pair.draft:
        draws = {"draft_sample_method": "probabilistic"}  # otherwise its drafts are greedy, and fewer are accepted
        config = {"method": "draft_model", "model": _original(pair.draft, "vLLM"), **config, **draws}
    else:
        config = {"method": "ngram", **config, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    parts = ["vllm", "serve", _original(pair.target, "vLLM")]
    parts += ["--speculative-config", json.dumps(config)] if pair.tokens else []
    parts += ["--max-model-len", str(pair.options["ctx"])] if "ctx" in pair.options else []
    return _script(parts)


def _sglang(pair: _Pair) -> tuple[str, str]:
    parts = ["python", "-m", "sglang.launch_server", "--model-path", _original(pair.target, "SGLang")]
    if pair.tokens and pair.draft:
        parts += ["--speculative-algorithm", "STANDALONE"]
        parts += ["--speculative-draft-model-path", _original(pair.draft, "SGLang")]
        parts += ["--speculative-num-steps", str(pair.tokens), "--speculative-eagle-topk", "1"]
        parts += ["--speculative-num-draft-tokens", str(pair.tokens + 1)]
    elif pair.tokens:
        parts += ["--speculative-algorithm", "NGRAM"]
    parts += ["--context-length", str(pair.options["ctx"])] if "ctx" in pair.options else []
    return _script(parts)


def _original(model: _Model, engine: str) -> str:
    """The repository of the maker's weights."""
    if original := original_of(model.reference):
        return original
    what = f"{engine} can't load GGUF files, and the original of {model.name} is unknown"
    raise UsageError(what, "Name the pair by a profile, or as REPO:QUANT.")


def original_of(text: str) -> str:
    """The maker's repository of a GGUF model on the Hub (`repo:quant` or `repo/file.gguf`), derived from the names and
    not looked up; empty if it can't be derived.
    """
    reference = references.parse(text)
    if reference is None or not reference.repo.endswith("-GGUF"):
        return ""
    owner, _, name = reference.repo.removesuffix("-GGUF").partition("/")
    if owner not in _CONVERTERS:
        return f"{owner}/{name}"
    maker, found, rest = name.partition("_")
    if found:
        return f"{maker}/{rest}"
    name = name.removesuffix("-i1")
    name = name.removeprefix("Meta-") if "-3.1-" in name else name  # the makers have left it out since 3.1
    return next((f"{maker}/{name}" for prefix, maker in _MAKERS.items() if name.startswith(prefix)), "")


def _script(parts: list[str]) -> tuple[str, str]:
    command = shlex.join(parts)
    return command, f"#!/bin/sh\nexec {command}\n"


_REQUESTS = "Sampling options aren't exported: each request sets its own."
ENGINES = {
    "llama-server": ServingEngine(
        StaticPolicy(MIN_CONFIDENCE, rereads=True, rule="match"),
        _LLAMA_NAMES,
        (*_OF_DRAFT_MODELS, "Its draft model reads verified tokens a second time."),
        "It accepts drafts as --accept match does: exact up to rounding, which it doesn't report. At a temperature it "
        "accepts fewer tokens than rejection.",
        "this kind of command was run with the llama.cpp of llama-cpp-python 0.3.36",
        _llama_server,
    ),
    "vllm": ServingEngine(
        StaticPolicy((0.0,), rereads=False, rule="rejection"),
        (*options_of(SamplingOptions), "ctx"),  # of the former, `rule` speaks
        _OF_BATCHES,
        _REQUESTS,
        f"vLLM 0.33.0 accepts such a configuration for vocabularies of the same size, but it was not run; {_NAMED}",
        _vllm,
        any_vocabulary=False,
    ),
    "sglang": ServingEngine(
        StaticPolicy((0.0,), rereads=False, rule="match"),
        (*options_of(SamplingOptions), "ctx"),  # of the former, `rule` speaks
        _OF_BATCHES,
        _REQUESTS,
        f"the parser of SGLang 0.5.23 accepts such options, but they were not run; {_NAMED}",
        _sglang,
    ),
}
