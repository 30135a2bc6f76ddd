"""The costs of forward passes on other machines, for predictions: `profiles/hardware/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import UsageError
from specdec_cli.user_files import bundled_dir, config_dir, named, read_mapping, suggest, to_record

_FIX = (
    "Write basis (measured or derived), and verify_ms and draft_ms as mappings from tokens to milliseconds, starting "
    "at 1 token: {1: 20, 4: 23}; repeated_ms, for a GPU that replays passes, likewise. other_ms is in milliseconds."
)
_Points = dict[Annotated[int, Meta(ge=1)], Annotated[float, Meta(ge=1e-6, lt=1e7)]]


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine with a pair of models, in milliseconds. basis: `measured` by specdec, or `derived` from `source`.

    verify_ms, draft_ms: a pass over so many tokens. repeated_ms: like verify_ms, for a pass of the same size as the two
    before it; empty where that makes no difference. other_ms: the rest of a step.
    """

    name: str
    basis: Literal["measured", "derived"]
    verify_ms: _Points
    draft_ms: _Points
    repeated_ms: _Points = field(default_factory=dict)
    other_ms: Annotated[float, Meta(ge=0, lt=1e7)] = 0.0
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        curves = {"verify_ms": self.verify_ms, "draft_ms": self.draft_ms, "repeated_ms": self.repeated_ms or {1: 1}}
        for key, points in curves.items():
            if 1 not in points:
                raise ValueError(f"{key} has no value for a pass over one token")

    @property
    def costs(self) -> Costs:
        verify, draft = (Curve({n: ms / 1000 for n, ms in ms_of.items()}) for ms_of in (self.verify_ms, self.draft_ms))
        repeated = Curve({n: ms / 1000 for n, ms in self.repeated_ms.items()}) if self.repeated_ms else None
        return Costs(verify, draft, self.other_ms / 1000, repeated=repeated)


def names() -> list[str]:
    return list(_files())


def load(name: str) -> Hardware:
    """A machine by name. Raises UsageError if it doesn't exist or its file is malformed."""
    files = _files()
    if name not in files:
        raise UsageError(f"there is no hardware {name!r}", suggest(name, files, "Hardware"))
    machine = to_record(read_mapping(files[name]), Hardware, files[name].name, _FIX, name=name)
    description, source = (" ".join(text.split()) for text in (machine.description, machine.source))
    return replace(machine, description=description, source=source)


def _files() -> dict[str, Path]:
    return named(config_dir() / "hardware", bundled_dir() / "hardware")
