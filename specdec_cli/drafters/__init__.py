"""Drafters by name. A built-in one is one file here and one line below; others come from installed packages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from typing import Protocol, cast

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.rules import free_name
from specdec_cli.decoding.types import Drafter
from specdec_cli.draft_length import DraftForm
from specdec_cli.drafters.cascade import CascadeDrafter
from specdec_cli.drafters.draft_model import ModelDrafter, SelfDrafter
from specdec_cli.drafters.drafter_context import DrafterContext, Guide
from specdec_cli.drafters.grammar_drafter import GrammarDrafter
from specdec_cli.drafters.head_drafters import Eagle3Drafter, MedusaDrafter, MtpDrafter
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.nested import Guesser, NestedDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.drafters.plugin import PluginSpec, form_of
from specdec_cli.drafters.small import SmallDrafter

GROUP = "specdec.drafters"
"""The entry-point group where packages list their drafters: name = "module:Class"."""


class DrafterSpec(Protocol):
    """What a drafter's class declares. `context.model` is set if and only if `needs_model`.

    needs, helps: for people: what it requires, and when it is useful. token_s: roughly how many seconds a drafted token
    takes, if there is no model; it's corrected during a run. A drafter with `guess` and `forget` (`nested.Guesser`) can
    draft for a draft model; with `nested_only`, it does nothing else. `form`, if given, is a DraftForm.
    """

    name: str
    needs_model: bool
    needs: str
    helps: str
    token_s: float

    @classmethod
    def create(cls, context: DrafterContext) -> Drafter: ...


_CLASSES: tuple[type[DrafterSpec], ...] = (
    *(ModelDrafter, MtpDrafter, Eagle3Drafter, MedusaDrafter, NgramDrafter, GrammarDrafter, LookaheadDrafter),
    *(SelfDrafter, SmallDrafter, NoDrafter),
)
_OURS = {each.name: each for each in _CLASSES}
_GIVEN: dict[str, tuple[object, PluginSpec]] = {}
"""Drafters that the program has passed."""
_lock = Lock()
HEADS = ("mtp", "eagle3", "medusa")
"""Drafters that read the target's hidden rows."""


def names() -> list[str]:
    """Every available drafter, built-in ones first."""
    return [*_OURS, *sorted({*_foreign(), *_GIVEN} - set(_OURS))]


def register(drafter: object) -> str:
    """The name of a drafter that the program passes: its own `name`, or its type's, with a number if that is taken.
    Raises UsageError if it isn't a drafter.
    """
    first = str(getattr(drafter, "name", "") or getattr(drafter, "__name__", "") or type(drafter).__name__)
    if re.search("[+<>]", first) or first in ("auto", *_OURS, *_foreign()):
        raise UsageError(
            f"a drafter can't have the name {first!r}", "Give it another one, without +, < and >, that isn't taken."
        )
    with _lock:
        if taken := next((known for known, (other, _) in _GIVEN.items() if other is drafter), ""):
            return taken
        name = free_name(first, _GIVEN)
        try:
            _GIVEN[name] = drafter, PluginSpec.of_object(name, drafter)
        except RuntimeError as error:
            raise UsageError(f"{name} can't be used as a drafter: {error}", "Give it a method propose.") from None
        return name


def one_at_a_time(name: str) -> bool:
    """Whether a drafter, or any in a cascade, is an object that drafts for one answer at a time."""
    return any(part in _GIVEN and not isinstance(_GIVEN[part][0], type) for part in split(name))


@cache
def spec(name: str) -> type[DrafterSpec] | PluginSpec:
    """A drafter's class, or what a package's class declares; for `model<ngram`, that of the first. Raises UsageError if
    there is none of that name, or its package doesn't load.
    """
    name = name.partition("<")[0]
    if name in _OURS:
        return _OURS[name]
    if name in _GIVEN:
        return _GIVEN[name][1]
    entry = _foreign().get(name)
    if entry is None:
        raise UsageError(f"there is no drafter {name!r}", f"Drafters: {', '.join(names())}.")
    try:
        return PluginSpec.load(entry)
    except RuntimeError as error:
        raise UsageError(
            f"the drafter {name!r} from the package {origin(name)} does not load: {error}", "Fix or remove the package."
        ) from None


def auto(has_model: bool, head: str = "") -> str:
    """What `--drafter auto` means: n-grams, which cost nothing, and if there is no match, the draft model or the
    heads.
    """
    return f"ngram+{head}" if head else "ngram+model" if has_model else "ngram"


def auto_with_grammar(name: str) -> str:
    """What `--drafter auto` means with a grammar. name: what it means without one; other names are returned as is."""
    autos = {auto(has_model=False), *(f"ngram+{second}" for second in ("model", "self", *HEADS))}
    return f"grammar+{name}" if name in autos else name


def split(name: str) -> list[str]:
    """The drafters in a name, in order: `ngram+model` tries the first, then the next.

    Another drafter may speed each up: `model<ngram`, or `ngram>model`, which means the same. Raises UsageError if one
    doesn't exist, or can't be used in its place.
    """
    if not all(re.split("[+<>]", name)):
        raise UsageError(f"a drafter is missing in {name!r}", f"Drafters: {', '.join(names())}.")
    parts = [_nested(part) for part in name.split("+")]
    if len(parts) > 1 and ("none" in parts or len(set(parts)) < len(parts)):
        raise UsageError(f"{name!r} cannot be a cascade of drafters", "Name different drafters: ngram+model.")
    if sum(spec(part).needs_model for part in parts) > 1:  # each would need the model's cache in its own state
        raise UsageError(f"{name!r} would need two draft models", "Name only one: ngram+model, ngram+self.")
    return parts


def _nested(name: str) -> str:
    """`A<B` for `A<B` and `B>A`, or a simple name."""
    if ">" in name:
        name = "<".join(reversed(name.split(">")))
    outer, speeds_up, inner = name.partition("<")
    for part in (outer, inner) if speeds_up else (outer,):
        spec(part)
    if getattr(spec(outer), "nested_only", False):
        raise UsageError(f"{outer} drafts only for another draft model", f"Use {outer}>model.")
    if speeds_up and (outer not in ("model", "self") or "<" in inner or getattr(spec(inner), "guess", None) is None):
        raise UsageError(
            f"{inner!r} cannot speed up {outer!r}", "Use model<ngram or small>model; self can replace model."
        )
    return name


def create(name: str, context: DrafterContext) -> Drafter:
    """Create a drafter from a name that `split` returned."""
    outer, _, inner = name.partition("<")
    if not inner:
        return spec(outer).create(context)
    return NestedDrafter(outer, cast(Guesser, spec(inner).create(context)), context)


def create_cascade(names: Sequence[str], contexts: Sequence[DrafterContext]) -> Drafter:
    """One drafter for several names, each with its context: a cascade, or for no names `none`. A draft model is
    guided by an earlier drafter that can.
    """
    made = list[Drafter]()
    for name, context in zip(names, contexts, strict=True):
        guide = next((earlier for earlier in made if hasattr(earlier, "sequel")), None)
        made.append(create(name, replace(context, guide=cast(Guide, guide))))
    if len(made) > 1:
        return CascadeDrafter(made, contexts[0].sampler.constraint)
    return made[0] if made else NoDrafter()


def form(name: str) -> DraftForm:
    """How a drafter makes its drafts."""
    return form_of(spec(name))


def origin(name: str) -> str:
    """The package that a drafter comes from."""
    entry = None if name in _OURS else _foreign().get(name)
    return "specdec" if entry is None else entry.dist.name if entry.dist else entry.module


@cache
def _foreign() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
