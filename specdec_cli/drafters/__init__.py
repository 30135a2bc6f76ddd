"""Drafters by name. A new one is one file here and one line below."""

from __future__ import annotations

from typing import Protocol

from specdec_cli.decoding.types import Drafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.drafters.parts import Parts


class Kind(Protocol):
    """What a drafter's class tells about itself. `parts.model` is there if, and only if, `needs_model`."""

    needs_model: bool

    @classmethod
    def create(cls, parts: Parts) -> Drafter: ...


DRAFTERS: dict[str, type[Kind]] = {"model": ModelDrafter, "none": NoDrafter}
