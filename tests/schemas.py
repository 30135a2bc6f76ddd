"""JSON schemas of different kinds, and of the requests that public APIs take or the answers they give."""

import itertools
import json

WORDS = ("name", "title", "city", "colour", "status")
TEXT = {"type": "string", "maxLength": 24}


def thing(properties, required=None, **more):
    """An object with these properties and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def whole(low, high):
    return {"type": "integer", "minimum": low, "maximum": high}


def real(low, high):
    return {"type": "number", "minimum": low, "maximum": high}


def rows(items, high, low=0):
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def spelt(pattern):
    return {"type": "string", "pattern": pattern}


def any_of(*kinds):
    return {"anyOf": list(kinds)}


TRUTH, NOTHING = {"type": "boolean"}, {"type": "null"}


def _scalars():
    yield from (
        TRUTH,
        {"type": "integer"},
        NOTHING,
        whole(0, 9),
        whole(-5, 5),
        whole(100, 2000),
        real(0, 1),
        real(-1, 1),
    )
    yield from ({"type": "string", "maxLength": most} for most in (1, 5, 40))
    yield {"type": "string", "minLength": 3, "maxLength": 8}
    yield from ({"enum": list(values)} for values in (WORDS, (1, 2, 3), ("a", 1, None, True)))
    yield from ({"const": value} for value in ("fixed", 42, {"a": [1, 2]}))


def _patterns():
    yield from map(spelt, (r"^[0-9]{3}-[0-9]{4}$", r"^[A-Z]{2}[0-9]{2}$", r"^#[0-9a-f]{6}$", r"^v[0-9]+\.[0-9]+$"))
    yield from map(spelt, (r"^(yes|no|maybe)$", r"^[a-z]{3,8}@[a-z]{3,8}\.com$", r"^[01]{8}$", r"^[A-Za-z ]{1,20}$"))
    yield from map(spelt, (r"^\+[0-9]{6,12}$", r"^[a-f0-9]{8}$"))
    yield from ({"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "ipv4", "email"))


def _recursive():
    def of(schema):
        return {"$defs": {"it": schema}, "$ref": "#/$defs/it"}

    again = {"$ref": "#/$defs/it"}
    yield of(thing({"value": whole(0, 99), "next": any_of(again, NOTHING)}))
    yield of(thing({"tag": {"enum": ["a", "b"]}, "children": rows(again, 2)}))
    yield of(any_of(whole(0, 9), thing({"op": {"enum": ["+", "*"]}, "left": again, "right": again})))


def _apis():
    """In the manner of public APIs: weather, tools, payment, chat, issues, maps, calendars, orders and others."""
    money = thing({"currency": {"enum": ["EUR", "USD", "JPY"]}, "amount": whole(0, 100000)})
    place = thing({"lat": real(-90, 90), "lon": real(-180, 180)})
    sha = spelt("^[0-9a-f]{7}$")
    yield thing({"location": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}})
    yield thing({"tool": {"const": "get_weather"}, "arguments": thing({"city": TEXT, "days": whole(1, 7)})})
    yield thing({"id": spelt("^pay_[a-z0-9]{8}$"), "price": money, "paid": TRUTH})
    yield thing({"role": {"enum": ["user", "assistant"]}, "content": TEXT, "refusal": NOTHING})
    labels = rows({"enum": ["bug", "docs", "idea"]}, 3)
    yield thing({"number": whole(1, 9999), "title": TEXT, "state": {"enum": ["open", "closed"]}, "labels": labels})
    yield thing({"type": {"const": "Feature"}, "geometry": thing({"type": {"const": "Point"}, "coordinates": place})})
    yield thing({"summary": TEXT, "start": {"type": "string", "format": "date"}, "attendees": rows(TEXT, 2)})
    item = thing({"sku": spelt("^[A-Z]{3}-[0-9]{3}$"), "count": whole(1, 99), "price": money})
    yield thing({"order": whole(1, 999999), "items": rows(item, 2, 1)})
    yield thing({"sentiment": {"enum": ["positive", "neutral", "negative"]}, "score": real(0, 1), "why": TEXT})
    yield thing({"entities": rows(thing({"text": TEXT, "kind": {"enum": ["person", "place", "firm"]}}), 3)})
    yield thing({"sha": sha, "message": TEXT, "verified": TRUTH, "parents": rows(sha, 2)})
    yield thing({"page": whole(1, 50), "per_page": {"enum": [10, 20, 50]}, "sort": any_of({"enum": ["asc"]}, NOTHING)})


def schemas():
    """All of them, by what they are: two hundred and some."""
    scalars, patterns = [*_scalars()], [*_patterns()]
    simple = [*scalars, *patterns]
    named = zip(itertools.cycle(WORDS), simple, strict=False)
    listed = (scalars[4], TEXT, patterns[0], {"enum": list(WORDS)}, TRUTH)
    united = (TRUTH, scalars[3], patterns[4], thing({"x": scalars[4]}), NOTHING, TEXT)
    kinds = {
        "scalar": scalars,
        "pattern": patterns,
        "object": [thing({word: each}) for word, each in named],
        "array": [rows(items, high, low) for items in listed for low, high in ((0, 2), (1, 1), (2, 4), (3, 3))],
        "union": [any_of(*two) for two in itertools.combinations(united, 2)],
        "optional": [thing({"a": each, "b": TEXT, "c": TRUTH}, ["a"]) for each in [*scalars[:12], *patterns[:6]]],
        "nested": [thing({"outer": thing({"leaf": each, "n": whole(0, 9)}), "ok": TRUTH}) for each in simple],
        "list of objects": [thing({"rows": rows(thing({"k": each, "v": TEXT}), 2, 1)}) for each in simple],
        "recursive": [*_recursive()],
        "API": [*_apis()],
    }
    return {f"{kind} {i}": schema for kind, own in kinds.items() for i, schema in enumerate(own)}


def invalid(text, schema):
    """What an independent validator says against a text; empty if it is valid."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    errors = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).iter_errors(value)
    return "; ".join(error.message for error in errors)
