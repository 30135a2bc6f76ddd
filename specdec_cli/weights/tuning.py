"""The results of `specdec tune` for a pair on this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.json_store import JsonStore, record_name
from specdec_cli.user_files import config_dir


@dataclass(frozen=True, slots=True)
class Tuning:
    """A pair's costs on a machine, the best threads and GPU layers, and the calibration of its draft probabilities.

    machine: as `llama.library.machine` names it. calibrations: by kind of sampling, as `kind_of` names it.
    """

    machine: str
    threads: Annotated[int, Meta(ge=1)]
    threads_draft: Annotated[int, Meta(ge=1)]
    gpu_layers: int
    gpu_layers_draft: int
    costs: Costs
    calibrations: dict[str, Calibration]

    def __post_init__(self) -> None:
        if not 0 <= self.costs.other < 1e6:
            raise ValueError(f"a step cannot take {self.costs.other} s beside its passes")


TUNINGS = JsonStore(lambda: config_dir() / "tuned", Tuning, "Run specdec tune again.")


def kind_of(greedy: bool, accept: str) -> str:
    """The kind of sampling: `greedy`, or the name of the acceptance rule, because acceptance depends on it."""
    return "greedy" if greedy else accept


def path_of(target: Path, draft: Path, setup: str = "") -> Path:
    """The file of a pair's tuning, by its files' names, sizes and ages. setup: a key for devices and adapters."""
    about = "-".join(f"{path.stat().st_size}/{path.stat().st_mtime_ns}" for path in (target, draft))
    identity = f"{target.name}/{draft.name}/{about}{setup and f'/{setup}'}"
    return TUNINGS.path(record_name((target.stem, draft.stem), identity))


def load(target: Path, draft: Path, setup: str = "") -> Tuning | None:
    """A pair's tuning. Raises SpecdecError if its file is damaged."""
    return TUNINGS.load(path_of(target, draft, setup).stem)


def save(target: Path, draft: Path, tuning: Tuning, setup: str = "") -> Path:
    """Save a pair's tuning. Calibrations for other kinds of sampling stay. Returns the file."""
    with suppress(SpecdecError):
        if older := load(target, draft, setup):
            tuning = replace(tuning, calibrations={**older.calibrations, **tuning.calibrations})
    return TUNINGS.save(path_of(target, draft, setup).stem, tuning)
