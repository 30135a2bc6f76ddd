"""What can be set: the models and where they lie, how they draft, how an answer is sampled.

A field that is None was not given. `config.Settings` has all of them, with defaults. Nothing here takes long to import.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from specdec_cli.decoding.options import SamplingOptions, option, options_of

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar import Grammar

AUTO: Literal["auto"] = "auto"
MOST_BRANCHES = 64
"""Of a token tree. llama.cpp has room for 256 sequences, but so wide a tree would verify little but first guesses."""
LEAST_WINDOW = 64
"""Of a draft model's memory, in tokens: less has no room for a draft."""
_MOST = 2**31
"""llama.cpp counts with 32 bits."""

_model = partial(option, panel="Models")
_adapters = partial(_model, metavar="FILE[:SCALE]")
_machine = partial(option, panel="Machine")
_threads = partial(_machine, None, takes="1 or more, or leave it out", valid=lambda value: value >= 1)
_speculation = partial(option, panel="Speculation")
_sampling = partial(option, panel="Sampling")


@dataclass(frozen=True)
class ModelOptions:
    """Which models, and what computes them: what an engine is loaded with."""

    target: str = _model(
        "", "Target model: .gguf file, REPO:QUANT or profile.\nREPO:QUANT has been pulled.", common=True, short="-m"
    )
    draft: str | None = _model(None, "Draft model, likewise.", common=True, short="-md")
    draft_small: str | None = _model(
        None, "A still smaller model that drafts for the draft model: --drafter small>model.", short="-mds"
    )
    lora: tuple[str, ...] = _adapters(
        (), "A LoRA adapter of the target, a .gguf file, and its scale, else 1; may be repeated."
    )
    lora_draft: tuple[str, ...] = _adapters((), "A LoRA adapter of the draft model; may be repeated.")
    draft_window: int | None = _speculation(
        None,
        "Tokens of a text that a draft model remembers: the first and the latest.",
        shown="what it was trained on",
        takes=f"{LEAST_WINDOW} or more, or leave it out",
        valid=lambda value: LEAST_WINDOW <= value < _MOST,
    )
    ctx: int | None = _machine(
        None,
        "Context in tokens.",
        common=True,
        short="-c",
        shown="as needed",
        takes="-c 1 or more, or leave it out",
        valid=lambda value: 1 <= value < _MOST,
    )
    threads: int | None = _threads("CPU threads.", common=True, short="-t", shown="the physical cores")
    threads_draft: int | None = _threads("CPU threads of the draft model.", short="-td", shown="as --threads")
    gpu_layers: int = _machine(-1, "Target layers on the GPU.", common=True, short="-ngl", shown="-1, all")
    gpu_layers_draft: int = _machine(-1, "Draft layers on the GPU.", short="-ngld", shown="-1, all")
    device: str | None = _machine(
        None,
        "Devices of the target, as specdec doctor names them; commas separate several; none is the CPU.",
        shown="all GPUs",
        metavar="NAME",
    )
    device_draft: str | None = _machine(
        None, "Devices of the draft model.", shown="the GPU with most memory free", metavar="NAME"
    )
    tensor_split: str | None = _machine(
        None, "The target's shares of several devices.", shown="by their free memory", metavar="N,N"
    )
    rpc: str | None = _machine(
        None,
        "Machines that compute the target (specdec rpc-server); commas separate several.",
        metavar="HOST:PORT",
    )
    rpc_insecure: bool = _machine(False, "Connect to servers outside private networks, too.", flag="rpc_insecure")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How tokens are drafted and accepted. None: as the engine was loaded.

    drafter: a name of `specdec drafters`, several, as "ngram+model", or "auto". draft_tokens: a step's, or "auto".
    accept: "rejection", "coupled" or "match", which are exact, or "typical", which is not. prediction: a text that the
    answer mostly repeats; n-grams draft from it. The other fields are the options of `specdec run` with the same names.
    """

    drafter: str = _speculation(
        AUTO,
        "What drafts: model, ngram, none ... (specdec drafters).\n"
        "ngram and lookahead need no model; self is a copy of the target made by specdec draft; ngram+model and "
        "model<ngram combine two. auto: ngram, then the model, if there is one.",
        common=True,
    )
    draft_tokens: int | Literal["auto"] = _speculation(
        AUTO,
        "Tokens to draft per step; auto: as many as pay off.",
        common=True,
        short="-k",
        metavar="N|auto",
    )
    draft_min_p: float = _speculation(
        0.0,
        "Stop drafting where the draft's best token has less probability.",
        takes="a number in [0, 1); 0 is off",
        valid=lambda value: 0 <= value < 1,
    )
    tree: int = _speculation(
        1,
        "Draft a tree of up to W branches instead of a chain; -k counts all its tokens.",
        metavar="W",
        takes=f"--tree 1 (a chain) to {MOST_BRANCHES}",
        valid=lambda value: 1 <= value <= MOST_BRANCHES,
    )
    lookahead: str = _speculation(
        "4:3:4", "For --drafter lookahead: window, size of n-grams, how many to verify at once.", metavar="W:N:G"
    )
    accept: str = _speculation(
        "rejection",
        "How drafts are accepted: rejection (accepts most), or coupled and match (with a seed, the very text of the "
        "target alone); typical is LOSSY: faster, another distribution.",
        shown="coupled with --seed or --bitwise, else rejection",
    )
    bitwise: bool = _speculation(
        False, "Draft only within passes that round alike here, so that the text is the target's own to the bit."
    )
    ngram_corpus: tuple[str, ...] = _speculation(
        (), "A file or folder, such as your code base, that ngram also drafts from; may be repeated.", metavar="PATH"
    )
    prediction: str | None = None


@dataclass(frozen=True)
class SamplingParams(SamplingOptions):
    """How one answer is sampled, and what ends it. None: as the engine was loaded.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off. seed: from 0; the same seed gives
    the same text, whatever drafts. max_tokens: of the answer. stop: strings that end it. grammar: what the answer must
    be.
    """

    seed: int | None = _sampling(
        None,
        "Seed for sampling.",
        common=True,
        short="-s",
        shown="random",
        takes="a whole number from 0",
        valid=lambda value: 0 <= value < 2**63,
    )
    max_tokens: int = option(
        256,
        "Max tokens of the answer.",
        common=True,
        short="-n",
        takes="-n 1 or more",
        valid=lambda value: 1 <= value < _MOST,
    )
    stop: str | tuple[str, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        """Nothing is filled in: what is not given is the engine's."""


_STRUCTS = (ModelOptions, SpeculativeConfig, SamplingParams)
OPTIONS = {name: about for struct in _STRUCTS for name, about in options_of(struct).items()}
KINDS = {each.name: str(each.type).split()[0] for struct in _STRUCTS for each in fields(struct)}
"""An option's type by its first word: `float`, `int`, `bool`, `str`, or `tuple[str,` of several."""
_SPELLINGS = {about.flag: name for name, about in OPTIONS.items() if about.flag}


def name_of(text: str) -> str:
    """The name of an option as a user may write it: `--temp`, `temp` and `temperature` are one."""
    name = text.lstrip("-").replace("-", "_")
    return _SPELLINGS.get(name, name)


def flag_of(name: str) -> str:
    """An option as it is written on the command line, without dashes before it."""
    return (OPTIONS[name].flag or name).replace("_", "-")


def given_in(*structs: Any) -> dict[str, Any]:
    """What is given in structs of options, by name."""
    values = {each.name: getattr(struct, each.name) for struct in structs if struct for each in fields(struct)}
    return {name: value for name, value in values.items() if value not in (None, ())}
