"""What a model's passes cost here, and which agree bit for bit: kept from one start to the next, one file a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import platformdirs

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.json_store import JsonStore, Points, record_name


@dataclass(frozen=True, slots=True)
class Place:
    """Where passes were timed: the machine's devices, the build of llama.cpp, CPU threads and layers on a GPU. setup:
    which devices and adapters, if any but the default ones.
    """

    machine: str
    build: str
    threads: int
    gpu_layers: int
    setup: str = ""


@dataclass(frozen=True, slots=True)
class KeptCosts:
    """Seconds of a pass over n tokens: verify, where every row of logits is read, draft, where one is."""

    verify: Points = field(default_factory=dict)
    draft: Points = field(default_factory=dict)
    agreement: Agreement | None = None
    # What they were measured of; `save` fills these in.
    model: str = field(default="", compare=False)
    machine: str = field(default="", compare=False)
    build: str = field(default="", compare=False)


_COSTS = JsonStore(
    lambda: platformdirs.user_cache_path("specdec", appauthor=False) / "costs", KeptCosts, "They are measured again."
)


def path_of(model: Path, place: Place) -> Path:
    """Where the costs of a model file are kept: named after the file, its size and age, and how it is run."""
    about = model.stat()
    identity = f"{model.name}/{about.st_size}/{about.st_mtime_ns}/{place.threads}/{place.gpu_layers}"
    identity += place.setup and f"/{place.setup}"
    return _COSTS.path(record_name((model.stem,), identity, digits=12))


def load(model: Path, place: Place) -> KeptCosts | None:
    """What is kept of a model file. Raises SpecdecError if it is damaged, or of another machine or build."""
    path = path_of(model, place)
    if kept := _COSTS.load(path.stem):
        for what in ("machine", "build"):
            if getattr(kept, what) != getattr(place, what):
                raise SpecdecError(f"{path.name} is of another {what}", f"Remove {path}.")
    return kept


def save(model: Path, place: Place, costs: KeptCosts) -> None:
    record = replace(costs, model=model.name, machine=place.machine, build=place.build)
    _COSTS.save(path_of(model, place).stem, record)
