"""The last speedup that was measured for a pair on this machine, for the list of pairs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.store.json_store import FORMAT, JsonStore
from specdec_cli.store.tuning import folder, path_of


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured speedup over the target alone: its geometric mean and 95 % bounds, of which settings, and when."""

    speedup: float
    low: float | None
    high: float | None
    settings: str
    when: str


_SPEEDS = JsonStore(folder, Speed, "Run specdec compare again.", formats=(FORMAT, None))


def keep(target: Path, draft: Path, speed: Speed) -> None:
    """Remember a measurement in place of the last one. Never raises: it is a convenience, not a result."""
    with suppress(SpecdecError, OSError):
        _SPEEDS.save(f"{path_of(target, draft).stem}.speed", speed)


def last(target: Path, draft: Path) -> Speed | None:
    """The last measurement, if there is one that can be read."""
    with suppress(SpecdecError, OSError):
        return _SPEEDS.load(f"{path_of(target, draft).stem}.speed")
    return None
