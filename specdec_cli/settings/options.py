"""Options: the models and their devices, how to draft, how to sample an answer.

None means not set; `settings.Settings` has all options with their defaults. This module imports fast.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from specdec_cli.decoding.options import SamplingOptions, option, options_of

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar import Grammar
    from specdec_cli.decoding.types import AcceptRule, LengthPolicy, Proposer

AUTO: Literal["auto"] = "auto"
MAX_BRANCHES = 64
"""Of a token tree. llama.cpp allows 256 sequences, but so wide a tree would verify little but first tokens."""
MIN_WINDOW = 64
"""Tokens; a shorter window has no room for a draft."""
_MAX = 2**31
"""llama.cpp counts in 32 bits."""

_model = partial(option, panel="Models")
_adapters = partial(_model, metavar="FILE[:SCALE]")
_machine = partial(option, panel="Machine")
_threads = partial(_machine, None, takes="1 or more, or leave it out", valid=lambda value: 1 <= value < _MAX)
_layers = partial(_machine, -1, takes="-1 (all), or 0 or more", valid=lambda value: -1 <= value < _MAX, shown="-1, all")
_speculation = partial(option, panel="Speculation")
_sampling = partial(option, panel="Sampling")


def _is_json_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class ModelOptions:
    """The options to load an engine: the models, and what computes them."""

    target: str = _model(
        "", "Target model: .gguf file, REPO:QUANT or profile.\nPull REPO:QUANT first.", common=True, short="-m"
    )
    draft: str | None = _model(None, "Draft model, in the same forms.", common=True, short="-md")
    draft_small: str | None = _model(
        None, "An even smaller model that drafts for the draft model: --drafter small>model.", short="-mds"
    )
    lora: tuple[str, ...] = _adapters(
        (), "A LoRA adapter for the target: a .gguf file and a scale, by default 1; may be repeated."
    )
    lora_draft: tuple[str, ...] = _adapters((), "A LoRA adapter for the draft model; may be repeated.")
    draft_window: int | None = _speculation(
        None,
        "Tokens of a text that a draft model keeps: the first and the latest.",
        shown="its training context",
        takes=f"{MIN_WINDOW} or more, or leave it out",
        valid=lambda value: MIN_WINDOW <= value < _MAX,
    )
    ctx: int | None = _machine(
        None,
        "Context in tokens.",
        common=True,
        short="-c",
        shown="as needed",
        takes="-c 1 or more, or leave it out",
        valid=lambda value: 1 <= value < _MAX,
    )
    threads: int | None = _threads("CPU threads.", common=True, short="-t", shown="the physical cores")
    threads_draft: int | None = _threads("CPU threads of the draft model.", short="-td", shown="same as --threads")
    gpu_layers: int = _layers("Target layers on the GPU.", common=True, short="-ngl")
    gpu_layers_draft: int = _layers("Draft layers on the GPU.", short="-ngld")
    device: str | None = _machine(
        None,
        "Devices for the target, as specdec doctor names them, separated by commas; none is the CPU.",
        shown="all GPUs",
        metavar="NAME",
    )
    device_draft: str | None = _machine(
        None, "Devices for the draft model.", shown="the GPU with the most free memory", metavar="NAME"
    )
    tensor_split: str | None = _machine(
        None, "Shares of the target on several devices.", shown="by their free memory", metavar="N,N"
    )
    rpc: str | None = _machine(
        None,
        "Servers that compute the target (specdec rpc-server), separated by commas.",
        metavar="HOST:PORT",
    )
    rpc_insecure: bool = _machine(False, "Allow servers outside private networks.", flag="rpc_insecure")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How tokens are drafted and accepted. None: the engine's setting.

    drafter: a name from `specdec drafters`, several, such as "ngram+model", or "auto"; or a drafter of your own.
    draft_tokens: per step, or "auto". accept: "rejection", "coupled" or "match", which are exact, or "typical", which
    isn't; or a rule of your own. prediction: a text that the answer mostly repeats, for drafters with ngram.
    length_policy: decides how much to draft, instead of `draft_tokens`. The other fields are the options of
    `specdec run` with the same names.

    Your own drafter or rule is replaced by the name that it has in this process from then on, which `compare` takes,
    too. An object drafts for one answer at a time; pass its class to have one created for each.
    """

    drafter: str | Proposer | type = _speculation(  # noqa: RUF009
        AUTO,
        "Drafter: model, ngram, none ... (see specdec drafters).\n"
        "ngram and lookahead need no model; self is a copy of the target made by specdec draft; ngram+model and "
        "model<ngram combine two. auto: ngram, then the model, if there is one.",
        common=True,
    )
    draft_tokens: int | Literal["auto"] = _speculation(
        AUTO,
        "Tokens to draft per step; auto: as many as pay.",
        common=True,
        short="-k",
        metavar="N|auto",
    )
    draft_min_p: float = _speculation(
        0.0,
        "Stop a draft when the best token's probability is below this.",
        takes="a number in [0, 1); 0 is off",
        valid=lambda value: 0 <= value < 1,
    )
    tree: int = _speculation(
        1,
        "Draft a tree of up to W branches instead of a chain; -k counts all its tokens.",
        metavar="W",
        takes=f"--tree 1 (a chain) to {MAX_BRANCHES}",
        valid=lambda value: 1 <= value <= MAX_BRANCHES,
    )
    lookahead: str = _speculation(
        "4:3:4", "For --drafter lookahead: window, n-gram size, n-grams to verify at once.", metavar="W:N:G"
    )
    accept: str | AcceptRule = _speculation(  # noqa: RUF009
        "rejection",
        "How drafts are accepted: rejection (the exact rule that accepts most), coupled or match (with a seed, the "
        "same text as the target alone); typical is LOSSY: faster, but a different distribution.",
        shown="coupled with --seed or --bitwise, else rejection",
    )
    bitwise: bool = _speculation(
        False, "Draft only in passes that round the same on this machine, so that the text is exactly the target's."
    )
    ngram_corpus: tuple[str, ...] = _speculation(
        (), "A file or folder, such as your code base, that ngram also drafts from; may be repeated.", metavar="PATH"
    )
    prediction: str | None = None
    length_policy: LengthPolicy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, str | None):
            from specdec_cli import drafters

            object.__setattr__(self, "drafter", drafters.register(self.drafter))
        if not isinstance(self.accept, str | None):
            from specdec_cli.decoding import rules

            object.__setattr__(self, "accept", rules.register(self.accept))


@dataclass(frozen=True)
class SamplingParams(SamplingOptions):
    """How an answer is sampled, and what ends it. None: the engine's setting.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off. seed: 0 or more. max_tokens: the
    answer's limit. stop: strings that end it. grammar: constrains it. logprobs: N gives each token the target's
    log probability of it and of the N likeliest tokens at its position, before temperature and cuts.
    chat_template_kwargs: variables with which the chat template renders the prompt, as JSON or a dictionary.
    """

    seed: int | None = _sampling(
        None,
        "Seed for sampling.",
        common=True,
        short="-s",
        shown="random",
        takes="0 or a larger whole number",
        valid=lambda value: 0 <= value < 2**63,
    )
    max_tokens: int = option(
        256,
        "Max tokens in the answer.",
        common=True,
        short="-n",
        takes="-n 1 or more",
        valid=lambda value: 1 <= value < _MAX,
    )
    stop: str | tuple[str, ...] = ()
    grammar: Grammar | None = None
    logprobs: int | None = None
    chat_template_kwargs: str | dict[str, Any] | None = option(  # noqa: RUF009
        None,
        "The chat template's variables, such as '{\"enable_thinking\": false}'.",
        metavar="JSON",
        takes="a JSON object",
        valid=_is_json_object,
    )

    def __post_init__(self) -> None:
        """Leave unset fields None: they are the engine's."""


_STRUCTS = (ModelOptions, SpeculativeConfig, SamplingParams)
OPTIONS = {name: about for struct in _STRUCTS for name, about in options_of(struct).items()}
TYPE_NAMES = {each.name: str(each.type).split()[0] for struct in _STRUCTS for each in fields(struct)}
"""The first word of an option's type: `float`, `int`, `bool`, `str`, or `tuple[str,`."""
_SPELLINGS = {text.lstrip("-"): name for name, about in OPTIONS.items() for text in (about.flag, about.short) if text}


def name_of(text: str) -> str:
    """The name of an option as a user may write it: `--temp`, `temp` or `temperature`; `-n` or `n`."""
    name = text.lstrip("-").replace("-", "_")
    return _SPELLINGS.get(name, name)


def flag_of(name: str) -> str:
    """An option's long flag without the leading dashes."""
    return (OPTIONS[name].flag or name).replace("_", "-")


def given_in(*structs: Any) -> dict[str, Any]:
    """The options that are set in some structs, by name."""
    values = {each.name: getattr(struct, each.name) for struct in structs if struct for each in fields(struct)}
    return {name: value for name, value in values.items() if value not in (None, ())}
