"""What the commands about pairs return. The engine makes these, a display shows them, `--json` prints their fields.

This file imports nothing of ours at run time, so that a display may import it. A field that is UNSET is not printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from specdec_cli.gguf.tokenizer_comparison import Check
    from specdec_cli.pairs.hub.repository import RemoteModel
    from specdec_cli.pairs.profiles import Profile
    from specdec_cli.pairs.speeds import Speed

Place = Literal["gpu", "both", "main", "none", "unknown"]
Verdict = Literal["identical", "compatible", "reduced", "translatable", "incompatible"]


def format_bytes(count: int) -> str:
    """Bytes for people, in decimal units as disks and the Hub count them."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count} B"


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

    verdict: Verdict
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
class DraftProposal:
    """A model that may draft for a target. ratio: its share of the target's parameters."""

    name: str
    size: int
    n_params: int
    ratio: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file on the Hub, and what the cache has of it: all, or so many bytes."""

    name: str
    size: int
    digest: str
    here: bool
    begun: int
    path: str


@dataclass(frozen=True, slots=True)
class PlannedRemote:
    """A model on the Hub at one commit."""

    reference: str
    repo: str
    commit: str
    files: tuple[PlannedFile, ...]
    gated: bool
    licence: str


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a pair, here or on the Hub."""

    name: str
    path: str | None
    remote: PlannedRemote | None


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What a download would fetch, in bytes. recorded: whether the pair would be kept under its name."""

    name: str
    recorded: bool
    target: PlannedModel
    draft: PlannedModel | None
    to_download: int
    free: int
    cache: str
    check: PairCheck | None
    notes: tuple[str, ...]

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The files on the Hub, the target's first."""
        remotes = [model.remote for model in (self.target, self.draft) if model and model.remote]
        return tuple(file for remote in remotes for file in remote.files)


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A pair that is on this machine. name: None if it is not recorded. paths: by role. run: the command for it."""

    name: str | None
    already: bool
    downloaded: int
    paths: dict[str, str]
    target: RemoteModel | None
    draft: RemoteModel | None
    check: PairCheck | None
    notes: tuple[str, ...]
    run: str


@dataclass(frozen=True, slots=True)
class PairSummary:
    """A pair in a list. size: bytes; of a pair that is not here, as its profile states it. pulled: the day."""

    name: str
    target: str
    draft: str | None
    description: str
    fits_gb: float | None
    size: int | None
    here: Literal["yes", "in part", "no"]
    pulled: str | None
    paths: tuple[str | None, ...]
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class PairList:
    """All pairs. notes: which profiles and records cannot be read."""

    pairs: tuple[PairSummary, ...]
    cache: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairDetails:
    """Everything about one pair."""

    profile: Profile
    summary: PairSummary
    heads: str = ""
    """The drafter for which the target has heads of its own."""
