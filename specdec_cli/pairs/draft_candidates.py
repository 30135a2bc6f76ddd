"""Small models that may draft for a target, chosen by the tokenizer in its header alone."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header
from specdec_cli.pairs import profiles
from specdec_cli.user_files import bundled_dir, parse_yaml

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
    """References of models that may share the target's tokenizer, those of a profile for the target `name` first."""
    pre = target.metadata.get("tokenizer.ggml.pre", "default")
    drafts = []
    for profile_name in profiles.names():
        with suppress(SpecdecError):  # a broken profile is reported elsewhere
            profile = profiles.load(profile_name)
            if profile.target == name and (draft := profile.model("draft")):
                drafts.append(draft)
    table = parse_yaml((bundled_dir() / "families" / "drafts.yaml").read_text("utf-8"))
    for family in msgspec.convert(table, list[Family]):
        if target.architecture in family.architectures and isinstance(pre, str) and pre == family.pre:
            drafts += family.drafts
    return [draft for draft in dict.fromkeys(drafts) if draft != name]


def rank(ratio: float) -> float:
    """How far a draft of so large a share of the target's parameters is from the usual one; less is better."""
    return abs(math.log(max(ratio, 1e-9) / BEST_RATIO))
