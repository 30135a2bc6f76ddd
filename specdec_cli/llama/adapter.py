"""A LoRA adapter: its file, and the scale at which it is added to the weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import UsageError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_MAX = 3.4e38
"""The largest scale: it is a 32-bit float."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """size: bytes. file: identifies the file. Both are set once its header has been read."""

    path: Path
    scale: float = 1.0
    size: int = 0
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """FILE or FILE:SCALE. A colon without a number after it is part of the path. Raises UsageError."""
        name, _, tail = text.rpartition(":")
        if not (name and _NUMBER.fullmatch(tail)):
            return cls(Path(text))
        scale = float(tail)
        if not abs(scale) <= _MAX:
            raise UsageError(f"the scale of {name} cannot be {tail}", "Give a finite number, such as 0.5.")
        return cls(Path(name), scale)

    def __str__(self) -> str:
        return f"{self.path}:{self.scale:g}"


def identity(adapters: Sequence[Adapter]) -> str:
    """Identifies these adapters and their scales; empty without any."""
    return "; ".join(f"{adapter.file}:{adapter.scale!r}" for adapter in adapters)
