"""The settings of a run, as a trace or the result of a comparison keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import msgspec


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """The fields of `engine.config.Settings`. None: not recorded, or not set."""

    target: str | None = None
    draft: str | None = None
    draft_small: str | None = None
    drafter: str | None = None
    accept: str | None = None
    bitwise: bool | None = None
    draft_tokens: int | str | None = None
    draft_min_p: float | None = None
    tree: int | None = None
    lookahead: str | None = None
    ngram_corpus: tuple[str, ...] | None = None
    lora: tuple[str, ...] | None = None
    lora_draft: tuple[str, ...] | None = None
    max_tokens: int | None = None
    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    draft_window: int | None = None
    ctx: int | None = None
    threads: int | None = None
    threads_draft: int | None = None
    gpu_layers: int | None = None
    gpu_layers_draft: int | None = None
    device: str | None = None
    device_draft: str | None = None
    tensor_split: str | None = None
    rpc: str | None = None
    rpc_insecure: bool | None = None

    @property
    def adapters(self) -> dict[str, str | None]:
        """Those of both models, by their files alone: a path may name the user."""
        own = {"lora": self.lora, "lora_draft": self.lora_draft}
        return {name: ", ".join(Path(text).name for text in texts or ()) or None for name, texts in own.items()}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RecordedSettings:
        """What is known by name; a value of another type than a run writes is left out."""
        known = {}
        for name, type_ in get_type_hints(cls).items():
            with suppress(ValueError):  # of msgspec, which also refuses half a surrogate pair
                known[name] = msgspec.convert(settings.get(name), type_)
        return cls(**known)
