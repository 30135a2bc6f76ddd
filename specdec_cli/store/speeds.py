"""The last speedup that was measured for a pair on this machine, for the list of pairs."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec_cli.store.tuning import path_of


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured speedup over the target alone: its geometric mean and 95 % bounds, of which settings, and when."""

    speedup: float
    low: float | None
    high: float | None
    settings: str
    when: str


def keep(target: Path, draft: Path, speed: Speed) -> None:
    """Remember a measurement in place of the last one. Never raises: it is a convenience, not a result."""
    with contextlib.suppress(OSError):
        path = _file(target, draft)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(speed)), "utf-8")


def last(target: Path, draft: Path) -> Speed | None:
    """The last measurement, if there is one that can be read."""
    try:
        found = Speed(**json.loads(_file(target, draft).read_text("utf-8")))
        bounds = [bound for bound in (found.low, found.high) if bound is not None]
        right = all(isinstance(figure, (int, float)) for figure in (found.speedup, *bounds))
        return found if right and isinstance(found.settings, str) and isinstance(found.when, str) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _file(target: Path, draft: Path) -> Path:
    return path_of(target, draft).with_suffix(".speed.json")
