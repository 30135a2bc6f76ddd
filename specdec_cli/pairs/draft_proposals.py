"""Proposes small models that may draft for a target, by the tokenizer in its header."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.tokenizer_comparison import Compatibility
from specdec_cli.gguf.vocabulary import pre_tokenizer
from specdec_cli.pairs import profiles, references
from specdec_cli.pairs.hub import repository
from specdec_cli.pairs.model_sources import ModelSource, read_source
from specdec_cli.user_files import bundled_dir, parse_yaml

_MAX_PROPOSALS = 5
_LARGEST_SHARE = 0.5
"""The draft's share of the target's parameters, and of its bytes, above which it isn't proposed."""
_BEST_RATIO = 0.05
"""The best share of the target's parameters, by which proposals are ranked. Pairs with published gains have 1 to 15
percent; smaller drafts agree less often, larger ones cost too much."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models with the same tokenizer. architectures, pre: as in headers. drafts: references, the most common first."""

    architectures: list[str]
    pre: str
    drafts: list[str]


@dataclass(frozen=True, slots=True)
class DraftProposal:
    """A model that may draft for a target. ratio: its share of the target's parameters."""

    name: str
    size: int
    n_params: int
    ratio: float
    verdict: Compatibility


def proposals(source: ModelSource, notes: list[str]) -> list[DraftProposal]:
    """Known drafts with the target's tokenizer and at most half its size, the likeliest to pay first. notes: notes for
    the user are added to it.
    """
    target = source.header
    found: list[DraftProposal] = []
    failure, looked_at = None, 0
    reference = references.parse(source.name)
    heads = repository.heads_beside(reference) if reference else []
    for name in [*heads, *candidates(target, source.name)][:_MAX_PROPOSALS]:
        try:
            draft = read_source(name, notes, here_first=True).header
        except SpecdecError as error:  # the user didn't ask for this model
            failure = failure or error
            continue
        looked_at += 1
        verdict = tokenizer_comparison.compare(target, draft).verdict
        ratio = draft.n_active_params / max(1, target.n_active_params)
        small = max(ratio, draft.size / max(1, target.size)) <= _LARGEST_SHARE
        if small and verdict in ("identical", "compatible"):
            found.append(DraftProposal(name, draft.size, draft.n_params, ratio, verdict))
    if failure and not looked_at:
        notes.append(f"the known drafts for {source.name} cannot be read: {failure}")
    return sorted(found, key=lambda proposal: abs(math.log(max(proposal.ratio, 1e-9) / _BEST_RATIO)))


def candidates(target: Header, name: str) -> list[str]:
    """References of models that may share the target's tokenizer, those of a profile for the target `name` first."""
    pre = pre_tokenizer(target)
    drafts = []
    for profile_name in profiles.names():
        with suppress(SpecdecError):  # a broken profile is reported elsewhere
            profile = profiles.load(profile_name)
            if profile.target == name and (draft := profile.model("draft")):
                drafts.append(draft)
    table = parse_yaml((bundled_dir() / "families" / "drafts.yaml").read_text("utf-8"))
    for family in msgspec.convert(table, list[Family]):
        if target.architecture in family.architectures and pre == family.pre:
            drafts += family.drafts
    return [draft for draft in dict.fromkeys(drafts) if draft != name]
