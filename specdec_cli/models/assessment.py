"""What two headers say about a pair before it is loaded: sizes, memory, and whether it is likely to pay."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from specdec_cli.models.gguf_header import Header
from specdec_cli.models.memory import Footprint, footprint

CONTEXT = 4096
"""Tokens of context that memory is told for, unless another number is asked for."""
LARGEST_RATIO = 0.13
"""Above this share of the target's parameters a draft rarely pays."""
_GPU_BUFFERS = 256 << 20  # an allowance for each model's buffers on a GPU, where nothing finer was measured

Place = Literal["gpu", "both", "main", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of memory free on this machine: on GPUs that llama.cpp can use (0 if none), and main memory.

    repacked: the tensor types of which llama.cpp makes a copy in main memory.
    """

    gpu: int
    main: int | None
    repacked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Side:
    """One model of a pair: what its header says, and the memory it takes in bytes."""

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

    @property
    def memory(self) -> int:
        return Footprint(self.size, self.repacked, self.vocabulary, self.cache, self.buffers).total


@dataclass(frozen=True, slots=True)
class Assessment:
    """A pair on paper. ratio: the draft's parameters over the target's, of experts those in use.

    needs: bytes of both with a context of `n_ctx` tokens. place: where on this machine that fits.
    """

    target: Side
    draft: Side
    n_ctx: int
    ratio: float
    needs: int
    room: Room
    place: Place
    opinions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "target": {**asdict(self.target), "memory": self.target.memory},
            "draft": {**asdict(self.draft), "memory": self.draft.memory},
            "n_ctx": self.n_ctx,
            "ratio": self.ratio,
            "memory": {"needed": self.needs, "gpu": self.room.gpu, "main": self.room.main, "fits": self.place},
            "opinions": list(self.opinions),
        }


def assess(target: Header, draft: Header, n_ctx: int, room: Room) -> Assessment:
    """Judge a pair by its headers. n_ctx: tokens of context that both models are to have."""
    sides = (side_of(target, n_ctx, room), side_of(draft, n_ctx, room))
    needs = sum(side.memory for side in sides)
    ratio = sides[1].n_active_params / max(1, sides[0].n_active_params)
    place = place_of(needs, room)
    opinions = (*_of_size(ratio), *_of_kind(target), *_of_context(*sides), *_of_memory(needs, room, place))
    return Assessment(*sides, n_ctx, ratio, needs, room, place, opinions)


def side_of(header: Header, n_ctx: int, room: Room) -> Side:
    """What a header says of a model. Its context is no longer than what it was trained on."""
    n_layers, n_ctx_train = (_whole(header.setting(key)) for key in ("block_count", "context_length"))
    needs = footprint(header, min(n_ctx, n_ctx_train or n_ctx), room.repacked)
    return Side(
        header.name,
        header.architecture,
        header.quantisation,
        header.n_params,
        header.n_active_params,
        n_layers,
        n_ctx_train,
        needs.weights,
        needs.repacked,
        needs.vocabulary,
        needs.cache,
        max(needs.buffers, _GPU_BUFFERS) if room.gpu else needs.buffers,
    )


def place_of(needs: int, room: Room) -> Place:
    """Where so many bytes fit on this machine."""
    if room.gpu and needs <= room.gpu:
        return "gpu"
    if room.main is None:
        return "unknown"
    if room.gpu and needs <= room.gpu + room.main:
        return "both"
    return "main" if needs <= room.main else "none"


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _of_size(ratio: float) -> list[str]:
    share = f"{ratio:.1%}" if ratio < 0.1 else f"{ratio:.0%}"
    if ratio >= 1:
        return [f"the draft has {share} of the target's parameters: it will slow the target down"]
    if ratio > LARGEST_RATIO:
        return [
            f"the draft has {share} of the target's parameters: above about {LARGEST_RATIO:.0%} it rarely pays, for it "
            "has to be right nearly always"
        ]
    return [f"the draft has {share} of the target's parameters: small enough to pay where the two agree"]


def _of_kind(target: Header) -> list[str]:
    said = []
    used, total = target.setting("expert_used_count"), target.setting("expert_count")
    if any("_exps." in tensor.name for tensor in target.tensors) and _whole(used) and _whole(total):
        said.append(
            f"the target is a mixture of experts, {used} of {total} for each token: verifying several tokens reads "
            "more experts than writing one, so it gains less than a dense model"
        )
    if any(
        ".ssm." in key or ".wkv." in key or ".shortconv." in key or key.endswith("full_attention_interval")
        for key in target.metadata
    ):
        said.append(
            "the target keeps a recurrent state, which cannot be rewound: rejected drafts cost a snapshot or a replay"
        )
    return said


def _of_context(target: Side, draft: Side) -> list[str]:
    if target.n_ctx_train and draft.n_ctx_train and draft.n_ctx_train < target.n_ctx_train:
        return [
            f"the draft was trained on {draft.n_ctx_train:,} tokens of context, the target on {target.n_ctx_train:,}: "
            "beyond that the target goes on alone"
        ]
    return []


def _of_memory(needs: int, room: Room, place: Place) -> list[str]:
    needed = _shown(needs)
    free = _shown(room.gpu) if room.gpu else ""
    main = _shown(room.main) if room.main is not None else "an unknown amount"
    if place == "both":
        return [
            f"both need {needed}, the GPU has {free} free: give fewer target layers to it (-ngl), and try the draft "
            "on the CPU (-ngld 0)"
        ]
    if place == "none":
        where = f"{free} of GPU memory and {main} of main memory" if room.gpu else f"{main} of main memory"
        return [f"both need {needed}, and this machine has {where} free: choose a smaller quantisation or target"]
    return []


def _shown(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
