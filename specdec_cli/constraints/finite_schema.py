"""Checks whether a JSON schema has a finite value: one that requires itself has none, so an answer would never end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def has_finite_value(root: Any) -> bool:
    """Whether a schema has a finite value; True if unknown.

    The definitions with a finite value are a least fixed point: at first none is known to have one, and each that turns
    out to have one is a reason to look again at those that refer to it.
    """
    finite: set[str] = set()
    waiting: defaultdict[str, set[str]] = defaultdict(set)
    """The definitions that lack a reference, by the reference."""
    due, seen = ["#"], {"#"}
    while due:
        name = due.pop()
        lacking = _lacking(resolved(root, name), finite)
        if lacking is None:
            finite.add(name)
            due += waiting.pop(name, ())
            continue
        for reference in lacking:
            waiting[reference].add(name)
        due += lacking - seen
        seen |= lacking
    return "#" in finite


def _lacking(schema: Any, finite: set[str]) -> set[str] | None:
    """None if a part has a finite value, given the references that have one; otherwise the references of which one is
    missing, which are none if nothing can help.
    """
    if not isinstance(schema, Mapping):
        return set() if schema is False else None
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference not in finite:
        return {reference}
    for part in schema.get("allOf") or ():
        if (lacking := _lacking(part, finite)) is not None:
            return lacking
    for either in ("anyOf", "oneOf"):
        choices = schema.get(either)
        if isinstance(choices, list) and (lacking := _any_of([_lacking(each, finite) for each in choices])) is not None:
            return lacking
    kinds = schema.get("type", ("object", "array", ""))
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    return _any_of([_lacking_of_kind(kind, schema, finite) for kind in kinds])


def _any_of(choices: list[set[str] | None]) -> set[str] | None:
    """What is missing for one of several choices."""
    return None if None in choices else set().union(*filter(None, choices))


def _lacking_of_kind(kind: object, schema: Mapping[str, Any], finite: set[str]) -> set[str] | None:
    parts: list[Any] = []
    if kind == "object":
        properties = schema.get("properties") or {}
        other = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        parts = [properties.get(name, other) for name in schema.get("required") or ()]
    elif kind == "array" and schema.get("minItems"):
        least, first = schema["minItems"], schema.get("prefixItems") or ()
        parts = [*first[:least], *([] if least <= len(first) else [schema.get("items", True)])]
    return next((lacking for part in parts if (lacking := _lacking(part, finite)) is not None), None)


def resolved(root: Any, reference: str) -> Any:
    """The part of the schema that a pointer names; True for anchors, and if there is none, which llguidance reports."""
    anchor, *steps = unquote(reference).removeprefix("#").split("/")
    part = True if anchor else root
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, Mapping) and name in part:
            part = part[name]
        else:
            return True
    return part
