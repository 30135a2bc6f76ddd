"""What forward passes cost on other machines: `profiles/hardware/*.yaml`, for predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.user_files import bundled_dir, config_dir, named, read_mapping, suggest, to_record

_FIX = (
    "Write basis (measured, derived), verify_ms and draft_ms as tokens: milliseconds, from 1 on, such as "
    "{1: 20, 4: 23}, and other_ms in milliseconds."
)
_Points = dict[Annotated[int, Meta(ge=1)], Annotated[float, Meta(ge=1e-6, lt=1e7)]]


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine with a pair of models on it. basis: `measured` by specdec, or `derived` as `source` tells."""

    name: str
    description: str
    basis: str
    source: str
    costs: Costs


@dataclass(frozen=True, slots=True)
class _HardwareFile:
    """Milliseconds, as a user writes them."""

    basis: Literal["measured", "derived"]
    verify_ms: _Points
    draft_ms: _Points
    other_ms: Annotated[float, Meta(ge=0, lt=1e7)] = 0.0
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for key, points in (("verify_ms", self.verify_ms), ("draft_ms", self.draft_ms)):
            if 1 not in points:
                raise ValueError(f"{key} says nothing of a pass of one token")


def names() -> list[str]:
    """All machines, the user's own included."""
    return list(_files())


def load(name: str) -> Hardware:
    """A machine by name; the user's own override those that are bundled.

    Raises SpecdecError if there is none of that name, UsageError if its file is malformed.
    """
    files = _files()
    if name not in files:
        raise SpecdecError(f"there is no hardware {name!r}", suggest(name, files, "Hardware"))
    data = to_record(read_mapping(files[name]), _HardwareFile, files[name].name, _FIX)
    description, source = (" ".join(text.split()) for text in (data.description, data.source))
    verify, draft = (Curve({n: ms / 1000 for n, ms in points.items()}) for points in (data.verify_ms, data.draft_ms))
    return Hardware(name, description, data.basis, source, Costs(verify, draft, data.other_ms / 1000))


def _files() -> dict[str, Path]:
    return named(config_dir() / "hardware", bundled_dir() / "hardware")
