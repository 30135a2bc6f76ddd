"""Compares two models by their headers: tokenizers, sizes, memory, and whether the pair is likely to pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import UNSET, UnsetType

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.head_files import head_alone, head_of, require_fit, require_model
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.memory import footprint
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary
from specdec_cli.gguf.tokenizer_comparison import Check, Comparison, Compatibility
from specdec_cli.pairs.hub.repository import RemoteModel
from specdec_cli.pairs.model_sources import ModelSource, read_source
from specdec_cli.pairs.profiles import is_profile, model_name
from specdec_cli.user_files import format_bytes

CONTEXT = 4096
"""The default context, in tokens, for memory estimates."""
LARGEST_RATIO = 0.13
"""The draft's share of the target's parameters above which it rarely pays."""
_GPU_BUFFERS = 256 << 20  # an estimate of each model's buffers on a GPU

FitsIn = Literal["gpu", "both", "main", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model by its header, with sizes in bytes. path: on this machine; remote: on the Hub."""

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
    """The bytes that a pair needs, the bytes free (gpu: 0 without one; main: None if unknown), and where it fits."""

    needed: int
    gpu: int
    main: int | None
    fits: FitsIn


@dataclass(frozen=True, slots=True)
class PairCheck:
    """The comparison of two models by their headers. verdict: of their tokenizers, or incompatible if a model can't run
    or heads don't fit. n_shared: number of ids, from 0, in both. n_differing: how many of them differ in text or type.
    llama_cpp_accepts: whether llama.cpp's own rule accepts the tokenizers. ratio: the draft's active parameters over
    the target's. rounding: which passes of the target agree bit for bit; None for a target on the Hub. overlap: for a
    translatable pair, the share of the draft's tokens that the target also has.
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


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes free on this machine: on GPUs that llama.cpp can use (0 if none), and main memory (None if unknown).

    repacked: the tensor types that llama.cpp copies into main memory.
    """

    gpu: int
    main: int | None
    repacked: frozenset[str] = frozenset()

    @classmethod
    def now(cls) -> FreeMemory:
        from specdec_cli.llama import host, library, placing

        gpus, main = placing.default_devices(), host.available_memory()
        free = sum(device.free for device in gpus)
        if main and gpus and not any(device.kind == "GPU" for device in gpus):  # they share the main memory
            main = max(0, main - free)
        return cls(free, main, library.repacked_types())

    def fits_in(self, needed: int) -> FitsIn:
        """Where `needed` bytes fit."""
        if self.gpu and needed <= self.gpu:
            return "gpu"
        if self.main is None:
            return "unknown"
        if self.gpu and needed <= self.gpu + self.main:
            return "both"
        return "main" if needed <= self.main else "none"


def check_pair_by_name(target: str, draft: str | None = None, n_ctx: int = CONTEXT) -> PairCheck:
    """Compare two models, each a file, a model on the Hub or a profile. Without a draft, compare those of a profile.

    Raises UsageError if there is no draft, DownloadError if the Hub fails, SpecdecError if a file isn't a model.
    A pair that can't be used is a result, with the verdict incompatible, not an error.
    """
    if draft is None and not is_profile(target):
        raise UsageError("there is no draft to compare with", "Name one after the target, or name only a profile.")
    notes: list[str] = []
    names = model_name(target, "target"), model_name(target if draft is None else draft, "draft")
    first, second = (read_source(name, notes, here_first=True) for name in names)
    tokenizers = tokenizer_comparison.compare(first.header, second.header)
    check = compare_sources(first, second, tokenizers, n_ctx, FreeMemory.now())
    try:
        for source in (first, second):
            require_runnable(source.header)
            require_sound_vocabulary(source.header)
        require_model(first.header)
        if head_alone(second.header):
            require_fit(second.header, first.header, tokenizers)
    except SpecdecError as error:
        check = replace(check, verdict="incompatible", reason=str(error), advice=(), overlap=None)
    return replace(check, notes=tuple(notes))


def compare_sources(
    target: ModelSource, draft: ModelSource, comparison: Comparison, n_ctx: int, free: FreeMemory
) -> PairCheck:
    """Compare two models whose headers have been read. n_ctx: tokens of context for both."""
    # A draft model's passes have too many rows for snapshots.
    sides = summarise(target, n_ctx, free), summarise(draft, n_ctx, free, 1 + LONGEST)
    needed = sides[0].memory + sides[1].memory
    ratio = sides[1].n_active_params / max(1, sides[0].n_active_params)
    memory = MemoryFit(needed, free.gpu, free.main, free.fits_in(needed))
    rounding = None
    if target.path:
        from specdec_cli.weights.pass_costs import known_agreement

        rounding = str(known_agreement(target.path) or "not measured yet: specdec run --bitwise measures it")
    fits = comparison.verdict != "incompatible"
    advice = tuple(_advice(target.header, draft.header, ratio, memory)) if fits else ()
    return PairCheck(
        verdict=comparison.verdict,
        reason=comparison.reason,
        n_shared=comparison.n_shared,
        n_differing=comparison.n_differing,
        llama_cpp_accepts=comparison.llama_cpp_accepts,
        checks=comparison.checks,
        target=sides[0],
        draft=sides[1],
        n_ctx=n_ctx,
        ratio=ratio,
        memory=memory,
        advice=advice,
        rounding=rounding,
        overlap=None if comparison.overlap is None else comparison.overlap.share,
    )


def summarise(source: ModelSource, n_ctx: int, free: FreeMemory, rows: int = 0) -> ModelSummary:
    """A model's figures from its header. The context is limited to the training context. rows: see `footprint`."""
    header = source.header
    n_layers, n_ctx_train = (header.count(key) or None for key in ("block_count", "context_length"))
    needs = footprint(header, min(n_ctx, n_ctx_train or n_ctx), free.repacked, rows)
    if free.gpu:
        needs = replace(needs, buffers=max(needs.buffers, _GPU_BUFFERS))
    return ModelSummary(
        name=source.name,
        architecture=header.architecture,
        quantisation=header.quantisation,
        n_params=header.n_params,
        n_active_params=header.n_active_params,
        n_layers=n_layers,
        n_ctx_train=n_ctx_train,
        size=needs.weights,
        repacked=needs.repacked,
        vocabulary=needs.vocabulary,
        cache=needs.cache,
        buffers=needs.buffers,
        memory=needs.total,
        path=str(source.path) if source.path else None,
        remote=source.remote,
    )


def _advice(target: Header, draft: Header, ratio: float, memory: MemoryFit) -> Iterator[str]:
    """Whether the pair is likely to pay, and what it needs."""
    share = f"the draft has {ratio:.{1 if ratio < 0.1 else 0}%} of the target's parameters"
    if kind := head_alone(draft):
        yield f"the draft is a file of heads: --drafter ngram+{kind} drafts with them"
    elif ratio >= 1:
        yield f"the draft model is {'larger than' if ratio > 1 else 'as large as'} the target: too large to pay"
    elif ratio > LARGEST_RATIO:
        yield f"{share}: above about {LARGEST_RATIO:.0%}, drafts rarely pay, because nearly all must be accepted"
    else:
        yield f"{share}: small enough to pay if the two often agree"
    if head_of(target) == "mtp":
        layers = target.setting("nextn_predict_layers")
        what = "a next-token layer" if layers == 1 else f"{layers} next-token layers"
        yield f"the target has {what} and can draft without another file: --drafter ngram+mtp"
    used, total = target.count("expert_used_count"), target.count("expert_count")
    if any("_exps." in name for name in target.by_name) and used and total:
        yield (
            f"the target is a mixture of experts and uses {used} of {total} for each token: verifying several tokens "
            "reads more experts than generating one, so it gains less than a dense model"
        )
    recurrent = (".ssm.", ".wkv.", ".shortconv.")
    if any(key.endswith("full_attention_interval") or any(k in key for k in recurrent) for key in target.metadata):
        yield "the target has a recurrent state that cannot be rewound: rejected drafts cost a snapshot or a replay"
    trained, less = target.count("context_length"), draft.count("context_length")
    if trained and less and less < trained:
        yield (
            f"the draft was trained on {less:,} tokens of context, the target on {trained:,}: in longer texts the "
            "draft keeps only the first and the latest tokens"
        )
    needed, gpu = format_bytes(memory.needed), format_bytes(memory.gpu)
    if memory.fits == "both":
        yield (
            f"both need {needed}, but the GPU has {gpu} free: put fewer target layers on it (-ngl), or the draft on "
            "the CPU (-ngld 0)"
        )
    if memory.fits == "none":
        where = f"{gpu} of GPU memory and " if memory.gpu else ""
        where += f"{format_bytes(memory.main or 0)} of main memory"
        yield f"both need {needed}, but this machine has {where} free: choose a smaller quantisation or target"
