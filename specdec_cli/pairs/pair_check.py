"""Two models compared by their headers: tokenizers, sizes, memory, and whether the pair is likely to pay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from msgspec import UNSET, UnsetType

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.head_files import head_of, is_head_alone
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.memory import footprint
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary
from specdec_cli.gguf.tokenizer_comparison import Check, Comparison, Compatibility
from specdec_cli.pairs.hub.repository import RemoteModel
from specdec_cli.pairs.sources import ModelSource, is_profile, model_name, read_source
from specdec_cli.user_files import format_bytes

CONTEXT = 4096
"""Tokens of context for which memory is estimated, unless another number is given."""
LARGEST_RATIO = 0.13
"""Above this share of the target's parameters a draft rarely pays."""
_GPU_BUFFERS = 256 << 20  # an allowance for each model's buffers on a GPU, where nothing finer was measured


Place = Literal["gpu", "both", "main", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model by its header, and the bytes of memory that it takes. path, remote: here, or on the Hub."""

    name: str
    architecture: str
    quantisation: str
    n_params: int
    n_active_params: int
    n_layers: int | None
    n_ctx_train: int | None
    size: int
    repacked: int
    vocabulary: int
    cache: int
    buffers: int
    memory: int
    path: str | None
    remote: RemoteModel | None


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Bytes that a pair needs, bytes that are free (gpu: 0 without one; main: None if unknown), and where it fits."""

    needed: int
    gpu: int
    main: int | None
    fits: Place


@dataclass(frozen=True, slots=True)
class PairCheck:
    """Two models compared by their headers. n_shared: ids from 0 on that both have; n_differing: those whose text or
    type differs. ratio: the draft's parameters over the target's, of experts those in use. rounding: which passes of
    the target agree bit for bit; None for a target on the Hub. overlap: of a translatable pair, which share of the
    draft's tokens the target has, too.
    """

    verdict: Compatibility
    reason: str
    n_shared: int
    n_differing: int
    llama_cpp_accepts: bool
    checks: tuple[Check, ...]
    target: ModelSummary
    draft: ModelSummary
    n_ctx: int
    ratio: float
    memory: MemoryFit
    advice: tuple[str, ...]
    rounding: str | None
    overlap: float | None = None
    notes: tuple[str, ...] | UnsetType = UNSET
    opinions: tuple[str, ...] = ()
    """The old name of `advice` in --json, which scripts may read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "opinions", self.advice)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes free on this machine: on GPUs that llama.cpp can use (0 if none), and main memory (None if unknown).

    repacked: the tensor types of which llama.cpp makes a copy in main memory.
    """

    gpu: int
    main: int | None
    repacked: frozenset[str] = frozenset()

    @classmethod
    def now(cls) -> FreeMemory:
        from specdec_cli.llama import host, library

        gpus = [device.free for device in library.devices() if "GPU" in device.kind] if library.supports_gpu() else []
        return cls(sum(gpus), host.available_memory(), library.repacked_types())

    def place(self, needed: int) -> Place:
        """Where so many bytes fit."""
        if self.gpu and needed <= self.gpu:
            return "gpu"
        if self.main is None:
            return "unknown"
        if self.gpu and needed <= self.gpu + self.main:
            return "both"
        return "main" if needed <= self.main else "none"


def check_pair_by_name(target: str, draft: str | None = None, n_ctx: int = CONTEXT) -> PairCheck:
    """Compare two models, each a file, a model on the Hub or a profile; without a draft, the two of a profile.

    Raises UsageError if no draft is named, DownloadError if the Hub does not deliver, SpecdecError if a file is no
    model. An incompatible pair is a result, not an error.
    """
    if draft is None and not is_profile(target):
        raise UsageError("no draft was named to compare with", "Name one after the target, or a profile alone.")
    notes: list[str] = []
    names = model_name(target, "target"), model_name(draft or target, "draft")
    first, second = (read_source(name, notes, here_first=True) for name in names)
    tokenizers = tokenizer_comparison.compare(first.header, second.header)
    check = compare_sources(first, second, tokenizers, n_ctx, FreeMemory.now())
    for source in (first, second):
        try:
            require_runnable(source.header)
            require_sound_vocabulary(source.header)
        except SpecdecError as error:
            notes.append(str(error))
    return replace(check, notes=tuple(notes))


def compare_sources(
    target: ModelSource, draft: ModelSource, comparison: Comparison, n_ctx: int, free: FreeMemory
) -> PairCheck:
    """Compare two models whose headers have been read. n_ctx: tokens of context for both."""
    sides = summarise(target, n_ctx, free), summarise(draft, n_ctx, free)
    needed = sides[0].memory + sides[1].memory
    ratio = sides[1].n_active_params / max(1, sides[0].n_active_params)
    memory = MemoryFit(needed, free.gpu, free.main, free.place(needed))
    kinds = (*_of_heads(target.header, draft.header), *_of_kind(target.header))
    advice = (_of_ratio(ratio), *kinds, *_of_context(*sides), *_of_memory(memory))
    rounding = None
    if target.path:
        from specdec_cli.engine.pass_costs import known_agreement

        rounding = str(known_agreement(target.path) or "not measured yet: specdec run --bitwise does it")
    advice = () if comparison.verdict == "incompatible" else advice
    counts = comparison.n_shared, comparison.n_differing
    tokenizers = comparison.verdict, comparison.reason, *counts, comparison.llama_cpp_accepts, comparison.checks
    overlap = None if comparison.overlap is None else comparison.overlap.share
    return PairCheck(*tokenizers, *sides, n_ctx, ratio, memory, advice, rounding, overlap)


def summarise(source: ModelSource, n_ctx: int, free: FreeMemory) -> ModelSummary:
    """What a header says of a model. Its context is no longer than what it was trained on."""
    header = source.header
    n_layers, n_ctx_train = (header.count(key) or None for key in ("block_count", "context_length"))
    needs = footprint(header, min(n_ctx, n_ctx_train or n_ctx), free.repacked)
    if free.gpu:
        needs = replace(needs, buffers=max(needs.buffers, _GPU_BUFFERS))
    kind = header.architecture, header.quantisation, header.n_params, header.n_active_params, n_layers, n_ctx_train
    sizes = needs.weights, needs.repacked, needs.vocabulary, needs.cache, needs.buffers, needs.total
    return ModelSummary(source.name, *kind, *sizes, str(source.path) if source.path else None, source.remote)


def _of_ratio(ratio: float) -> str:
    share = f"the draft has {ratio:.{1 if ratio < 0.1 else 0}%} of the target's parameters"
    if ratio >= 1:
        return f"{share}: it will slow the target down"
    if ratio > LARGEST_RATIO:
        return f"{share}: above about {LARGEST_RATIO:.0%} it rarely pays, for it has to be right nearly always"
    return f"{share}: small enough to pay where the two agree"


def _of_heads(target: Header, draft: Header) -> list[str]:
    advice = []
    if head_of(target) == "mtp":
        layers = target.setting("nextn_predict_layers")
        said = "a next-token layer" if layers == 1 else f"{layers} next-token layers"
        advice.append(f"the target has {said} of its own: --drafter ngram+mtp drafts with that, without another file")
    if (kind := head_of(draft)) and is_head_alone(draft):
        advice.append(f"the draft is heads for a target's hidden rows: --drafter ngram+{kind}")
    return advice


def _of_kind(target: Header) -> list[str]:
    advice = []
    used, total = target.count("expert_used_count"), target.count("expert_count")
    if any("_exps." in name for name in target.by_name) and used and total:
        advice.append(
            f"the target is a mixture of experts, {used} of {total} for each token: verifying several tokens reads "
            "more experts than writing one, so it gains less than a dense model"
        )
    recurrent = (".ssm.", ".wkv.", ".shortconv.")
    if any(key.endswith("full_attention_interval") or any(k in key for k in recurrent) for key in target.metadata):
        advice.append(
            "the target keeps a recurrent state, which cannot be rewound: rejected drafts cost a snapshot or a replay"
        )
    return advice


def _of_context(target: ModelSummary, draft: ModelSummary) -> list[str]:
    trained, less = target.n_ctx_train, draft.n_ctx_train
    if not (trained and less and less < trained):
        return []
    return [
        f"the draft was trained on {less:,} tokens of context, the target on {trained:,}: of longer texts the draft "
        "remembers the first and the latest tokens"
    ]


def _of_memory(memory: MemoryFit) -> list[str]:
    needed, gpu = format_bytes(memory.needed), format_bytes(memory.gpu)
    if memory.fits == "both":
        return [
            f"both need {needed}, the GPU has {gpu} free: give fewer target layers to it (-ngl), and try the draft "
            "on the CPU (-ngld 0)"
        ]
    if memory.fits == "none":
        where = f"{gpu} of GPU memory and " if memory.gpu else ""
        where += f"{format_bytes(memory.main or 0)} of main memory"
        return [f"both need {needed}, and this machine has {where} free: choose a smaller quantisation or target"]
    return []
