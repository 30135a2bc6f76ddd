"""What was measured on one machine: a file of benchmarks/results."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from datetime import date
from pathlib import Path

import msgspec

from specdec_cli import __version__
from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.llama import host, kernels, library

_EXTRA = ("AMX_INT8", "REPACK")
_KERNELS = ("AMX_INT8", "AVX512", "AVX2", "NEON", "REPACK")
"""Of the flags of llama.cpp's build, those that a reader knows. _EXTRA: which aren't used where they don't work."""
_WRITTEN = {"AVX512": "AVX-512", "AMX_INT8": "AMX"}
"""Those that are written in another way in text."""
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"


class Ratio(msgspec.Struct, frozen=True, array_like=True):
    """A geometric mean over prompts, with its 95 % interval if there are enough of them."""

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ratios: list[float]) -> Ratio | None:
        if (found := geometric_interval(ratios)) is None:
            return None
        low, high = (bound and round(bound, 3) for bound in (found.low, found.high))
        return cls(round(found.mean, 3), low, high)

    def __str__(self) -> str:
        return f"{self.mean:.2f}x" if self.low is None else f"{self.mean:.2f}x ({self.low:.2f} to {self.high:.2f})"


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """A method in a cell. speed: over the target alone, paired. default: the default's speed over this, of a peer.

    tokens_per_step: 0 where the tool doesn't say. ttft_ms: the median, without a cache. memory_mb: the most that the
    process has used, 0 if unknown; specdec's methods share one. same: greedy or coupled answers that are the target's
    own, rounding: that differ by rounding, which is proved for specdec's; wrong: that differ otherwise.
    """

    tokens_per_s: float
    speed: Ratio
    default: Ratio | None = None
    tokens_per_step: float = 0.0
    acceptance: float | None = None
    ttft_ms: float = 0.0
    memory_mb: float = 0.0
    same: int = 0
    rounding: int = 0
    differs: int = 0
    wrong: int = 0


class CellFigures(msgspec.Struct, frozen=True):
    """A cell. noise: the target alone against itself, as a share. attempts: how often the cell was measured, because
    the machine was noisy; the quietest counts.
    """

    model: str
    suite: str
    temperature: float
    prompts: int
    tokens: int
    quick: bool
    noise: float
    attempts: int
    commit: str
    when: str
    methods: dict[str, Figures]


class LoadFigures(msgspec.Struct, frozen=True):
    """Servers with several clients. servers: by name, tokens per second of all clients, the median milliseconds to the
    first token, and the speed over specdec's target alone, paired by round.
    """

    model: str
    clients: int
    prompts: str
    constrained: bool
    requests: int
    rounds: int
    commit: str
    when: str
    servers: dict[str, tuple[float, float, Ratio | None]]
    tokens: int = 48


class Machine(msgspec.Struct, frozen=True):
    name: str
    cores: int
    memory_gb: int
    kernels: str
    versions: dict[str, str]

    @property
    def title(self) -> str:
        """The processor and its best kernels, for processors of several generations have the same name."""
        best = self.kernels.partition(",")[0]
        return f"{self.name}, {_WRITTEN.get(best, best)}"


class Results(msgspec.Struct):
    """http: requests per second of the HTTP layer alone."""

    machine: Machine
    cells: dict[str, CellFigures] = {}
    load: dict[str, LoadFigures] = {}
    http: dict[str, float] = {}


def this_machine() -> Machine:
    flags = re.findall(r"(\w+) = 1", library.build_flags())
    unused = () if kernels.verdict().extra_buffers else _EXTRA
    gpus = [re.sub(r"\d+$", "", device.name) for device in library.devices() if device.is_gpu]
    used = [*dict.fromkeys(gpus), *(flag for flag in _KERNELS if flag in flags and flag not in unused)]
    versions = {"specdec": __version__, "python": platform.python_version(), **library.versions()}
    memory = round((host.total_memory() or 0) / 2**30)
    name = ", ".join(device.description for device in library.devices())
    name = re.sub(r"\((R|TM)\)| Processor\b", "", name)
    return Machine(name, host.physical_cores(), memory, ", ".join(used), versions)


def path_of(machine: Machine) -> Path:
    name = f"{machine.name} {machine.cores} cores {machine.kernels.partition(',')[0]}"
    return FOLDER / f"{'-'.join(re.findall('[a-z0-9]+', name.lower()))}.json"


def load(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def save(path: Path, results: Results) -> None:
    """Replace the file as a whole, so that a kill leaves the old one or the new one."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    partial.replace(path)


@functools.cache
def commit() -> str:
    """The commit that is measured, marked if the package isn't as it was committed; "" outside a repository."""
    command = "git rev-parse --short=10 HEAD && (git diff --quiet HEAD specdec_cli || echo -dirty)"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    return "".join(done.stdout.split())


def today() -> str:
    return date.today().isoformat()
