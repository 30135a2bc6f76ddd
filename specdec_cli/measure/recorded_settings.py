"""The settings of a run, as a trace or the result of a comparison keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specdec_cli.engine.config import Options, types
from specdec_cli.engine.options import OPTIONS, name_of


@dataclass(frozen=True)
class RecordedSettings(Options):
    """None: not recorded, or not set."""

    @property
    def adapters(self) -> dict[str, str | None]:
        """Those of both models, by their files alone: a path may name the user."""
        own = {"lora": self.lora, "lora_draft": self.lora_draft}
        return {name: ", ".join(Path(text).name for text in texts or ()) or None for name, texts in own.items()}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RecordedSettings:
        """What is known by name; a value of another type than a run writes is left out."""
        known = {}
        for name, value in settings.items():
            if (name := name_of(name)) in OPTIONS:
                with suppress(ValueError):  # of msgspec, which also refuses half a surrogate pair
                    known[name] = msgspec.convert(value, _TYPES[name])
        return cls(**known)


_TYPES: dict[str, Any] = {name: kind | None for name, kind in types().items()}
RecordedSettings.__annotations__.update(_TYPES)  # what msgspec reads from a file: null for what was not given
