"""Rewrites JSON schemas so that llguidance enforces exactly what they say, or refuses them."""

from __future__ import annotations

import itertools
import json
import math
import re
from contextlib import suppress
from typing import Any

from specdec_cli.constraints.finite_schema import resolved

_OF_NAMES = {"properties", "patternProperties", "$defs", "definitions"}
_OF_SCHEMAS = {"anyOf", "allOf", "oneOf", "prefixItems"}
_TYPE_OF = {
    **{dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"},
    type(None): "null",
}
_ALWAYS_TRUE = (("uniqueItems", False), ("propertyNames", {"type": "string"}))
_CLASS = re.compile(r"\\.|\[(\^?)(\]?(?:\\.|[^]\\])*)\]", re.S)
_IN_CLASS = re.compile(r"(\\.|.)(?:-(\\.|.))?", re.S)
"""A character of a class, or a range."""
_DEEPEST = 8
"""How many references and properties are followed to find out whether alternatives exclude each other."""


def read_schema(text: str) -> Any:
    """Raises ValueError for numbers beyond double precision, in which llguidance computes."""
    return json.loads(text, parse_float=_finite)


def supported(schema: Any, root: Any, one_of: bool) -> Any:
    """A schema without what has no effect, and with `anyOf` for `oneOf` where alternatives exclude each other.

    one_of: whether that may be replaced: not if a reference may point into it. Raises ValueError for a constant that
    llguidance would change, and for `minProperties` that it wouldn't enforce.
    """
    if not isinstance(schema, dict):
        return schema
    new: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            new[key] = {
                _for_rust(name) if key == "patternProperties" else name: supported(part, root, one_of)
                for name, part in value.items()
            }
        elif key in _OF_SCHEMAS and isinstance(value, list):
            new[key] = [supported(part, root, one_of) for part in value]
        elif key == "pattern" and isinstance(value, str):
            new[key] = _for_rust(value)
        elif key in ("const", "enum"):
            _require_exact(value)
            new[key] = value
        elif (key, value) not in _ALWAYS_TRUE and (key not in ("default", "examples") or isinstance(value, dict)):
            new[key] = supported(value, root, one_of)
    with suppress(TypeError):  # not a schema: llguidance says what is wrong
        least = new.get("minProperties", 0) if "object" in new.get("type", "object") else 0
        if least > len(set(new.get("required", ()))) + 1:  # further keys may be equal
            raise ValueError("minProperties can be at most one more than the number of required properties")
        pairs = itertools.combinations(new.get("oneOf") or (), 2)
        if one_of and "oneOf" in new and "anyOf" not in new and all(_exclude(one, other, root) for one, other in pairs):
            new["anyOf"] = new.pop("oneOf")
    return new


def _require_exact(value: Any) -> None:
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _require_exact(part)
    elif isinstance(value, int) and abs(value) > 2**53 and (abs(value) > 1e300 or int(float(value)) != value):
        raise ValueError(f"the constant {str(value)[:30]} has too many digits: whole numbers are exact up to 2^53")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"the number {text[:30]} is too large")
    return number


def _for_rust(pattern: str) -> str:
    r"""A pattern of ECMAScript in Rust's syntax, where `[`, `&&`, `~~` and `--` mean something else in a class.

    Negated classes exclude the control characters that need `\u00`: llguidance would let `\"` and `\\` through too.
    """

    def escaped(part: re.Match[str]) -> str:
        return "-".join(f"\\{each}" if each in "[]&~-" else each for each in part.groups() if each)

    def changed(found: re.Match[str]) -> str:
        if found[2] is None:
            return found[0]
        controls = r"\x00-\x08" if found[1] else ""
        return f"[{found[1]}{controls}{_IN_CLASS.sub(escaped, found[2])}]"

    return _CLASS.sub(changed, pattern)


def _exclude(one: Any, other: Any, root: Any, depth: int = 0) -> bool:
    """Whether it's certain that no value fits two schemas."""
    one, other = _target(one, root), _target(other, root)
    if not isinstance(one, dict) or not isinstance(other, dict) or depth > _DEEPEST:
        return False
    shared = _types(one) & _types(other)
    if not shared:
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(value in others for value in values)
    if shared != {"object"}:
        return False
    required = [name for name in one.get("required") or () if name in (other.get("required") or ())]
    mine, theirs = (each.get("properties") or {} for each in (one, other))
    return any(_exclude(mine.get(name), theirs.get(name), root, depth + 1) for name in required)


def _target(schema: Any, root: Any) -> Any:
    for _ in range(_DEEPEST):
        if isinstance(schema, dict) and isinstance(name := schema.get("$ref"), str) and name.startswith("#"):
            schema = resolved(root, name)
    return schema


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that a schema's values may have; whole numbers are numbers."""
    named = schema.get("type", [*_TYPE_OF.values()])
    types = frozenset(
        "number" if each == "integer" else each for each in ([named] if isinstance(named, str) else named)
    )
    if (values := _values(schema)) is not None:
        types &= {_TYPE_OF[type(value)] for value in values}
    return types


def _values(schema: dict[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")
