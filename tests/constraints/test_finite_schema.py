"""Which schemas have a finite value: the definitions that do are a least fixed point."""

import itertools

import pytest

from specdec_cli.constraints.finite_schema import has_finite_value

NEXT = {"$ref": "#/$defs/b%20b"}
EVERY = {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}


def object_of(*parts):
    return {"type": "object", "properties": {str(i): part for i, part in enumerate(parts)}, "required": ["0"]}


def defined(**definitions):
    return {"$ref": "#/$defs/a", "$defs": {name.replace("_", " "): part for name, part in definitions.items()}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"$ref": "#/nowhere"},
        defined(a=object_of(NEXT), b_b={"const": 1}),
        defined(a=object_of({"const": 1}, {"$ref": "#/$defs/a"})),
        defined(a={"anyOf": [object_of({"$ref": "#/$defs/a"}), NEXT]}, b_b={"type": ["array", "null"], "minItems": 1}),
        defined(a={"type": "array", "items": {"$ref": "#/$defs/a"}}),
        defined(a={"type": "array", "prefixItems": [{}], "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
        defined(a=object_of({"$ref": "#/$defs/b%20b/anyOf/1"}), b_b={"anyOf": [NEXT, {"const": 1}]}),
        {"allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"type": "string"}}},
        object_of({"$ref": "#n"}) | {"$defs": {"b": {"$anchor": "n", "const": 1}}},
        EVERY | {"patternProperties": {"a": {"const": 1}}},
    ],
)
def test_finite(schema):
    assert has_finite_value(schema)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        object_of({"$ref": "#"}),
        EVERY,
        defined(a=NEXT, b_b={"$ref": "#/$defs/a"}),
        defined(a=object_of(NEXT), b_b={"oneOf": [object_of({"$ref": "#/$defs/a"}), {"allOf": [NEXT]}]}),
        defined(a={"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
        defined(a={"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}),
        defined(a={"anyOf": [False, {"$ref": "#/$defs/b%20b/anyOf/0"}]}, b_b={"anyOf": [NEXT, {"const": 1}, NEXT]})
        | {"allOf": [object_of({"$ref": "#"})]},
    ],
)
def test_infinite(schema):
    assert not has_finite_value(schema)


def test_long_chains_and_wide_diamonds():
    """More definitions than calls may be nested, each requiring the next twice, in one order and in the other."""
    names = [f"d{i}" for i in range(2_000)]
    for order in (names, names[::-1]):
        links = itertools.pairwise(order)
        definitions = {name: object_of(*[{"$ref": f"#/$defs/{after}"}] * 2) for name, after in links}
        schema = {"$ref": f"#/$defs/{order[0]}", "$defs": {**definitions, order[-1]: {"const": 1}}}
        assert has_finite_value(schema)
        schema["$defs"][order[-1]] = {"$ref": f"#/$defs/{order[0]}"}
        assert not has_finite_value(schema)
