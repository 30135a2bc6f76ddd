"""The last measured speedup of each pair, for the list of pairs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.statistics import MIN_PROMPTS, Interval
from specdec_cli.json_store import JsonStore
from specdec_cli.weights.tuning import TUNINGS, path_of


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured speedup over the target alone: its geometric mean, its 95 % interval, the settings and the date."""

    speedup: float
    low: float | None
    high: float | None
    settings: str
    when: str

    @property
    def interval(self) -> Interval:
        return Interval(self.speedup, self.low, self.high, MIN_PROMPTS)

    @property
    def claimed(self) -> bool:
        """Whether the interval excludes 1: else no ratio is shown."""
        return self.interval.excludes_one


_SPEEDS = JsonStore(TUNINGS.folder, Speed, "Run specdec compare again.")


def keep_speed(target: Path, draft: Path, speed: Speed, setup: str) -> None:
    """Save a measurement, replacing the last one. Ignores errors, because nothing depends on it."""
    with suppress(SpecdecError, OSError):
        _SPEEDS.save(f"{path_of(target, draft, setup).stem}.speed", speed)


def last_speed(target: Path, draft: Path, setup: str = "") -> Speed | None:
    with suppress(SpecdecError, OSError):
        return _SPEEDS.load(f"{path_of(target, draft, setup).stem}.speed")
    return None
