"""`specdec doctor`: checks the installation, and says how to improve it.

It loads llama.cpp only in child processes, because a build that doesn't fit the processor ends its process.
"""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from specdec_cli import __version__, user_files
from specdec_cli.decoding.errors import DownloadError, SpecdecError
from specdec_cli.drafters import corpus
from specdec_cli.llama import building, host, kernels
from specdec_cli.llama.placement import Device
from specdec_cli.llama.trial_process import Child
from specdec_cli.pairs import profiles
from specdec_cli.pairs.config_layers import resolve
from specdec_cli.pairs.hub import cache
from specdec_cli.settings.settings import Settings

_WAIT_S = 120.0

# The name that users see, the word in llama.cpp's build flags, and the processor's flag on Linux.
_KERNELS = (
    ("AMX", "AMX_INT8", "amx_int8"),
    ("AVX-512", "AVX512", "avx512f"),
    ("AVX-512 VNNI", "AVX512_VNNI", "avx512_vnni"),
    ("AVX-VNNI", "AVX_VNNI", "avx_vnni"),
    ("AVX2", "AVX2", "avx2"),
    ("NEON", "NEON", "asimd"),
    ("dot products", "DOTPROD", "asimddp"),
    ("int8 matrices", "MATMUL_INT8", "i8mm"),
    ("SVE", "SVE", "sve"),
    ("repacking", "REPACK", ""),
)
_OF_EXTRA_BUFFERS = ("AMX", "repacking")


@dataclass(frozen=True, slots=True)
class UnusedGpu:
    """A GPU that the build can't use, what is missing, and the command that enables it."""

    name: str
    accel: str
    missing: str
    command: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of llama.cpp that are used on this processor. unused: kernels that another build could use. problem,
    repair: what fails, and the command that rebuilds llama.cpp; empty if nothing fails.
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
    """Whether the bundled pair runs, and what is wrong if it doesn't."""

    ok: bool = False
    problem: str = ""
    target: str | UnsetType = UNSET
    draft: str | UnsetType | None = UNSET
    rounding: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of the installation."""

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
    """What this build of llama.cpp lacks for heads that read hidden states."""
    rpc: bool = False
    """Whether it can use other machines."""

    @property
    def ok(self) -> bool:
        return self.bundled_pair.ok and not self.config_problem and not self.kernels.problem


@dataclass(frozen=True, slots=True)
class Library:
    """What llama.cpp reports. problem: why it can't."""

    versions: dict[str, str] = field(default_factory=dict)
    flags: str = ""
    gpu_offload: bool = False
    devices: tuple[Device, ...] = ()
    missing: tuple[str, ...] = ()
    rpc: bool = False
    problem: str = ""


Answer = TypeVar("Answer", Library, BundledPair)


def diagnose() -> Diagnosis:
    """Examine the build, the devices, the settings and the caches, and run the bundled pair for a few tokens."""
    verdict, library = kernels.try_again(), _library()
    versions = {"specdec": __version__, "python": platform.python_version(), **library.versions}
    return Diagnosis(
        versions={**versions, "huggingface-hub": version("huggingface-hub"), "platform": platform.platform()},
        build=library.flags or library.problem,
        gpu_offload=library.gpu_offload,
        devices=library.devices,
        threads=host.physical_cores(),
        memory_available=host.available_memory(),
        kernels=_kernels(library, verdict),
        unused_gpu=None if library.gpu_offload else _unused_gpu(),
        weights_cache=str(cache.cache_dir()),
        corpora=CorpusCache(str(corpus.folder()), corpus.kept_bytes()),
        config=str(user_files.config_dir()),
        config_problem=_config_problem(),
        profiles=tuple(profiles.names()),
        bundled_pair=_bundled_pair(),
        missing_for_heads=library.missing,
        rpc=library.rpc,
    )


def _kernels(library: Library, verdict: kernels.TriedKernels) -> Kernels:
    built = {part.split("=")[0].rpartition(":")[2].strip() for part in library.flags.split("|") if "= 1" in part}
    able = building.processor().split()
    works = verdict.extra_buffers
    used = [name for name, word, _ in _KERNELS if word in built and (works or name not in _OF_EXTRA_BUFFERS)]
    unused = [name for name, word, flag in _KERNELS if flag in able and name not in used] if library.flags else []
    problem = "" if works else str(verdict)
    return Kernels(tuple(used), tuple(unused), problem, kernels.rebuild() if problem or unused else "")


def _library() -> Library:
    return _from_child(Library, "library")


def _bundled_pair() -> BundledPair:
    return _from_child(BundledPair, "pair", str(user_files.bundled_dir() / profiles.DEMO))


def _from_child(kind: type[Answer], *arguments: str) -> Answer:
    """What this file prints in a child process; the `problem`, if the child dies or takes too long."""
    child = Child(["-m", "specdec_cli.measure.doctor", *arguments], _WAIT_S)
    try:
        if (code := child.wait()) == 0:
            return msgspec.json.decode(child.output(), type=kind)
        why = "it took too long" if child.timed_out else child.death() or f"it ended with code {code}"
        return kind(problem=f"llama.cpp doesn't work: {why}")
    finally:
        child.stop()


def _examine_library() -> Library:
    """In the child."""
    try:
        from specdec_cli.llama import library, undeclared
    except SpecdecError as error:
        return Library(problem=str(error))
    return Library(
        library.versions(),
        library.build_flags(),
        library.supports_gpu(),
        tuple(library.devices()),
        tuple(undeclared.missing_for_heads()),
        library.knows_rpc(),
    )


def _run_pair(folder: str) -> BundledPair:
    """In the child: decode a few tokens with the bundled pair in a folder."""
    target, draft = (str(Path(folder) / f"{role}.gguf") for role in ("target", "draft"))
    try:
        from specdec_cli.engine.engine import one_session
        from specdec_cli.llama.interrupt import Interrupt

        threads = host.usual_threads()
        settings = Settings(
            target, draft, drafter="model", draft_tokens=3, max_tokens=16, bitwise=True, ctx=512, threads=threads
        )
        with Interrupt() as interrupt, one_session(settings, interrupt) as session:
            metrics = session.generate("def main():").metrics
            rounding = str(session.costs.agreement)
    except SpecdecError as error:
        return BundledPair(problem=f"{error} {error.hint}")
    works = metrics.emitted > 1 and metrics.accepted > 0 and not metrics.notes
    problem = "" if works else f"the models load, but don't decode correctly: {', '.join(metrics.notes)}"
    return BundledPair(works, problem, target, draft, rounding)


def _config_problem() -> str:
    """What is wrong with the user's settings. Every command would fail because of it."""
    try:
        resolve(None, {})
    except DownloadError:  # a pair that isn't pulled yet is no error
        pass
    except SpecdecError as error:
        return f"{error} {error.hint}"
    return ""


def _unused_gpu() -> UnusedGpu | None:
    """A GPU on this machine, for a build that can't use any."""
    missing = ""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        name, accel = "Apple silicon", "metal"
    elif names := building.output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        name, accel, missing = names.splitlines()[0], "cuda", "" if building.nvcc() else "the CUDA toolkit (nvcc)"
    elif any(Path("/dev/dri").glob("renderD*")):
        name, accel = "a GPU with a render node", "vulkan"
        missing = "" if shutil.which("glslc") else "the Vulkan SDK (glslc)"
    else:
        return None
    return UnusedGpu(name, accel, missing, building.command(accel))


if __name__ == "__main__":
    examined = _examine_library() if sys.argv[1] == "library" else _run_pair(sys.argv[2])
    sys.stdout.buffer.write(msgspec.json.encode(examined))
