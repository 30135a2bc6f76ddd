"""What forward passes cost on other machines: `profiles/hardware/*.yaml`, for predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models.profiles import bundled_dir, check_keys, config_dir, read_mapping, suggest

_KEYS = ("description", "basis", "source", "verify_ms", "draft_ms", "other_ms")
_BASES = ("measured", "derived")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine with a pair of models on it. basis: `measured` by specdec, or `derived` as `source` tells."""

    name: str
    description: str
    basis: str
    source: str
    costs: Costs


def names() -> list[str]:
    """All machines, the user's own included."""
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.yaml")})


def load(name: str) -> Hardware:
    """A machine by name; the user's own override those that are bundled.

    Raises SpecdecError if there is none of that name, UsageError if its file is malformed.
    """
    for folder in _folders():
        path = folder / f"{name}.yaml"
        if name in {found.stem for found in folder.glob("*.yaml")}:
            return _parse(name, path)
    raise SpecdecError(f"there is no hardware {name!r}", suggest(name, names(), "Hardware"))


def _folders() -> tuple[Path, Path]:
    return config_dir() / "hardware", bundled_dir() / "hardware"


def _parse(name: str, path: Path) -> Hardware:
    data = read_mapping(path)
    check_keys(data, _KEYS, path)
    basis = data.get("basis")
    if basis not in _BASES:
        raise UsageError(f"the basis in {path.name} is {basis!r}", f"Write one of: {', '.join(_BASES)}.")
    other = data.get("other_ms", 0.0)
    if not _is_time(other, least=0.0):
        raise UsageError(f"other_ms in {path.name} is {other!r}, not a time", "Write milliseconds, 0 or more.")
    costs = Costs(_curve(data, "verify_ms", path), _curve(data, "draft_ms", path), other / 1000)
    texts = [" ".join(str(data.get(key, "")).split()) for key in ("description", "source")]
    return Hardware(name, texts[0], basis, texts[1], costs)


def _curve(data: dict[str, Any], key: str, path: Path) -> Curve:
    points = data.get(key)
    fix = f"Write tokens: milliseconds, from 1 on: {key}: {{1: 20, 4: 23}}."
    if not isinstance(points, dict) or 1 not in points:
        raise UsageError(f"{key} in {path.name} is not a cost curve", fix)
    if not all(type(n) is int and n > 0 and _is_time(ms) for n, ms in points.items()):
        raise UsageError(f"{key} in {path.name} has a point that is none", fix)
    return Curve({n: ms / 1000 for n, ms in sorted(points.items())})


def _is_time(value: Any, least: float = 1e-6) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < 1e7
