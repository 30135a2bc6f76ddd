"""The settings of a run, as a trace or the result of a comparison stores them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specdec_cli.settings.options import OPTIONS, name_of
from specdec_cli.settings.settings import Options, option_types


@dataclass(frozen=True)
class RecordedSettings(Options):
    """None: not recorded, or not set."""

    @property
    def adapters(self) -> dict[str, str | None]:
        """The adapters of both models, by file name only: a path may contain the user's name."""
        own = {"lora": self.lora, "lora_draft": self.lora_draft}
        return {name: ", ".join(Path(text).name for text in texts or ()) or None for name, texts in own.items()}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RecordedSettings:
        """The known settings; a value of another type than a run writes is left out."""
        known = {}
        for name, value in settings.items():
            if (name := name_of(name)) in OPTIONS:
                with suppress(ValueError):  # msgspec also rejects half a surrogate pair
                    known[name] = msgspec.convert(value, _TYPES[name])
        return cls(**known)


_TYPES: dict[str, Any] = {name: kind | None for name, kind in option_types().items()}
RecordedSettings.__annotations__.update(_TYPES)  # for msgspec: a file has null for settings that weren't given
