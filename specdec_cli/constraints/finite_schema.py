"""Checks whether a JSON schema has a finite value: one that requires itself has none, so an answer would never end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def has_finite_value(schema: Any, root: Any = None, within: frozenset[str] = frozenset()) -> bool:
    """Whether a schema has a finite value; True if unknown. root: the whole schema, if this is a part. within: the
    references that led here; a value that requires one of them again is infinite.
    """
    root = schema if root is None else root
    if not isinstance(schema, Mapping):
        return schema is not False

    def finite(part: Any) -> bool:
        return has_finite_value(part, root, within)

    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        if reference in within:
            return False
        if not has_finite_value(_resolved(root, reference), root, within | {reference}):
            return False
    for either in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(either), list) and not any(map(finite, choices)):
            return False
    if not all(map(finite, schema.get("allOf") or ())):
        return False
    kinds = schema.get("type", ("object", "array", ""))
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    return any(_finite_kind(kind, schema, finite) for kind in kinds)


def _finite_kind(kind: object, schema: Mapping[str, Any], finite: Any) -> bool:
    if kind == "object":
        properties = schema.get("properties") or {}
        return all(finite(properties[name]) for name in schema.get("required") or () if name in properties)
    if kind == "array" and schema.get("minItems"):
        least, first = schema["minItems"], schema.get("prefixItems") or ()
        return all(map(finite, first[:least])) and (least <= len(first) or finite(schema.get("items", True)))
    return True


def _resolved(root: Any, reference: str) -> Any:
    """The part of the schema that a pointer names; True if there is none, which llguidance reports."""
    part = root
    for step in reference.lstrip("#").split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(part, Mapping) or name not in part:
            return True
        part = part[name]
    return part
