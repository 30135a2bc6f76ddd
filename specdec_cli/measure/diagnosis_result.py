"""What an examination of an installation finds. A field that is UNSET is not printed by `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from specdec_cli.llama.placement import Device


@dataclass(frozen=True, slots=True)
class UnusedGpu:
    """A GPU that the build cannot use, what is missing to change that, and the command that does."""

    name: str
    accel: str
    missing: str
    command: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which of llama.cpp's kernels are used on this processor. unused: what the processor could do beside that, in
    another build. problem, repair: what fails, and the command that builds llama.cpp again; empty if nothing does.
    """

    used: tuple[str, ...]
    unused: tuple[str, ...]
    problem: str
    repair: str


@dataclass(frozen=True, slots=True)
class CorpusCache:
    """The indexes of corpora."""

    folder: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BundledPair:
    """Whether the bundled pair runs; what is wrong, if it does not."""

    ok: bool
    problem: str
    target: str | UnsetType = UNSET
    draft: str | UnsetType | None = UNSET
    rounding: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What this installation can do."""

    versions: dict[str, str]
    build: str
    gpu_offload: bool
    devices: tuple[Device, ...]
    threads: int
    memory_available: int | None
    kernels: Kernels
    unused_gpu: UnusedGpu | None
    weights_cache: str
    corpora: CorpusCache
    config: str
    config_problem: str
    profiles: tuple[str, ...]
    bundled_pair: BundledPair
    missing_for_heads: tuple[str, ...] = ()
    """What this build of llama.cpp lacks for drafts from hidden rows."""
    rpc: bool = False
    """Whether it can compute on other machines."""

    @property
    def ok(self) -> bool:
        return self.bundled_pair.ok and not self.config_problem and not self.kernels.problem
