"""Drafters by name. One of ours is one file here and one line below; others come from installed packages."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.types import Drafter
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.nested import NestedDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.drafters.self import SelfDrafter
from specdec_cli.drafters.small import SmallDrafter

GROUP = "specdec.drafters"
"""The entry-point group in which a package names its drafters: name = "module:Class"."""


class DrafterSpec(Protocol):
    """What a drafter's class tells about itself. `parts.model` is there if, and only if, `needs_model`.

    needs, helps: for people: what it takes, and when it is of use. token_s: without a model, about how many seconds a
    drafted token takes; costs are corrected as a run goes on.
    """

    name: str
    needs_model: bool
    needs: str
    helps: str
    token_s: float

    @classmethod
    def create(cls, parts: DrafterContext) -> Drafter: ...


_OURS: dict[str, type[DrafterSpec]] = {
    "model": ModelDrafter,
    "ngram": NgramDrafter,
    "lookahead": LookaheadDrafter,
    "self": SelfDrafter,
    "small": SmallDrafter,
    "none": NoDrafter,
}
_GUESSERS: dict[str, type[NgramDrafter] | type[SmallDrafter]] = {"ngram": NgramDrafter, "small": SmallDrafter}
"""Those that can draft for a draft model."""


def names() -> list[str]:
    """Every drafter that can be asked for; ours first."""
    return [*_OURS, *sorted(set(_foreign()) - set(_OURS))]


@cache
def spec(name: str) -> type[DrafterSpec]:
    """A drafter's class; of `model<ngram` that of the first. Raises UsageError if there is none of that name, or its
    package does not load.
    """
    name = name.partition("<")[0]
    if name in _OURS:
        return _OURS[name]
    found = _foreign().get(name)
    if found is None:
        raise UsageError(f"there is no drafter {name!r}", f"Drafters: {', '.join(names())}.")
    try:
        loaded: type[DrafterSpec] = found.load()
        if not (callable(loaded.create) and isinstance(loaded.needs_model, bool)):
            raise TypeError("it is no drafter")
        return loaded
    except Exception as error:  # a package's import may raise anything
        raise UsageError(
            f"the drafter {name!r} of the package {origin(name)} does not load: {error}", "Mend or remove the package."
        ) from None


def split(name: str) -> list[str]:
    """The drafters that a name asks for, in order: `ngram+model` tries the first, and falls to the next.

    Each may be sped up by another, `model<ngram`; `ngram>model` is the same. Raises UsageError if one of them does not
    exist, or cannot be in such a place.
    """
    if not all(re.split("[+<>]", name)):
        raise UsageError(f"{name!r} names no drafter in one place", f"Drafters: {', '.join(names())}.")
    found = [_nested(part) for part in name.split("+")]
    if len(found) > 1 and ("none" in found or len(set(found)) < len(found)):
        raise UsageError(f"{name!r} is no chain of drafters", "Name different drafters: ngram+model.")
    if sum(spec(part).needs_model for part in found) > 1:  # each would keep the model's cache in its own state
        raise UsageError(f"{name!r} would need two draft models", "Name one of them: ngram+model, ngram+self.")
    return found


def _nested(name: str) -> str:
    """`A<B`, however it was written, or a simple name."""
    if ">" in name:
        name = "<".join(reversed(name.split(">")))
    outer, speeds_up, inner = name.partition("<")
    for part in (outer, inner) if speeds_up else (outer,):
        spec(part)
    if outer == "small":
        raise UsageError("small drafts for another draft model only", "Write small>model.")
    if speeds_up and (outer not in ("model", "self") or inner not in _GUESSERS):
        raise UsageError(
            f"{inner!r} cannot speed up {outer!r}", "Write model<ngram or small>model; self may stand for model."
        )
    return name


def create(name: str, parts: DrafterContext) -> Drafter:
    """A drafter, by a name that `split` returned."""
    outer, _, inner = name.partition("<")
    return NestedDrafter(outer, _GUESSERS[inner].create(parts), parts) if inner else spec(outer).create(parts)


def needs_model(name: str) -> bool:
    """Whether a drafter, or any of a chain, needs a draft model."""
    return any(spec(part).needs_model for part in split(name))


def needs_small(name: str) -> bool:
    """Whether a drafter needs a second draft model."""
    return any(part.endswith("<small") for part in split(name))


def drafts_itself(name: str) -> bool:
    """Whether a copy of the target is the draft model."""
    return any(spec(part) is SelfDrafter for part in split(name))


def origin(name: str) -> str:
    """The package that a drafter comes from."""
    found = None if name in _OURS else _foreign().get(name)
    return "specdec" if found is None else found.dist.name if found.dist else found.module


@cache
def _foreign() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}
