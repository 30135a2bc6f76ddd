"""Which small models may draft for a target: told by the tokenizer in its header, before any of them is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import yaml

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models import profiles
from specdec_cli.models.gguf_header import Header

BEST_RATIO = 0.05
"""Proposals are ranked by how near their share of the target's parameters comes to this: pairs with published gains
have 1 to 15 per cent, smaller drafts agree less often, larger ones cost too much."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models with one tokenizer. architectures, pre: as headers name them. drafts: references, the usual first."""

    family: str
    architectures: list[str]
    pre: str
    drafts: list[str]


def candidates(target: Header, name: str) -> list[str]:
    """References of models that may share the target's tokenizer, those of a profile for this very target first.

    name: how the target was named; it is never a candidate itself.
    """
    own = [profile.model("draft") for profile in _profiles() if profile.target == name]
    pre = target.metadata.get("tokenizer.ggml.pre", "default")
    known = [
        draft
        for family in _families()
        if target.architecture in family.architectures and isinstance(pre, str) and pre == family.pre
        for draft in family.drafts
    ]
    return list(dict.fromkeys(draft for draft in (*own, *known) if draft and draft != name))


def rank(ratio: float) -> float:
    """How far a draft of so large a share of the target's parameters is from the usual one; less is better."""
    return abs(math.log(max(ratio, 1e-9) / BEST_RATIO))


def _families() -> list[Family]:
    path = profiles.bundled_dir() / "families" / "drafts.yaml"
    return [Family(**family) for family in yaml.safe_load(path.read_text("utf-8"))]


def _profiles() -> list[profiles.Profile]:
    """All profiles that can be read; a broken one of the user's is not what this is about."""
    found = []
    for name in profiles.names():
        try:
            found.append(profiles.load(name))
        except SpecdecError:
            continue
    return found
