"""Constraints that take much time, memory or stack to compile, or look as if they did."""

import random
import string

from schemas import any_of, rows, spelt, thing, whole


def constraint(rng: random.Random) -> tuple[str, object]:
    """A field of `structured_outputs`, and a value that makes much work."""
    make = rng.choice(
        (chain, chain, diamond, diamond, all_of, multiple, multiple, pattern, values, constant, recursion)
    )
    kind = rng.randrange(10)
    if kind == 0:
        return "regex", expression(rng)
    if kind == 1:
        return "grammar", rules(rng)
    return "json", make(rng)


def size(rng: random.Random, most: int) -> int:
    """Mostly small, sometimes up to `most`."""
    return max(1, round(most ** rng.random()))


def linked(rng: random.Random, length: int, link) -> dict[str, object]:
    """Definitions, each made by `link` of a reference to another, which mostly is the next; the last is a constant."""
    names = [f"{rng.choice(('d', 'a b', 'a/b', 'a%b', 'ö'))}{i}" for i in range(length + 1)]
    references = [{"$ref": f"#/$defs/{pointer(name)}"} for name in names]
    definitions = {name: link(after) for name, after in zip(names, references[1:], strict=False)}
    last = rng.choice(({"const": "yes"}, {"type": "string"}, rng.choice(references), thing({"a": {"type": "null"}})))
    return {**references[0], "$defs": {**definitions, names[-1]: last}}


def pointer(name: str) -> str:
    """The name in a reference: escaped once for the pointer, once for the URI."""
    name = name.replace("~", "~0").replace("/", "~1")
    return "".join(
        each if each in string.ascii_letters + string.digits else "".join(f"%{b:02X}" for b in each.encode())
        for each in name
    )


def chain(rng):
    return linked(rng, size(rng, 20_000), lambda part: rng.choice((part, thing({"a": part}), any_of(part, {}))))


def diamond(rng):
    width = rng.randint(2, 4)

    def link(part):
        return rng.choice((thing({f"p{i}": part for i in range(width)}), rows(part, 9, 2), any_of(part, part)))

    return linked(rng, size(rng, 2000), link)


def all_of(rng):
    return linked(rng, size(rng, 200), lambda part: {"allOf": [part] * rng.randint(2, 3)})


def multiple(rng):
    steps = [{"type": "integer", "multipleOf": size(rng, 10**10)} for _ in range(rng.randint(1, 3))]
    return rng.choice((steps[0], {"allOf": steps}, thing({f"n{i}": step for i, step in enumerate(steps)})))


def expression(rng):
    count = size(rng, 10**7)
    return rng.choice(
        (
            f"(a|b)*a(a|b){{{count}}}",
            f"((hello ){{1,{count}}}x){{1,{count}}}",
            "(" * count + "a" + ")" * count if count < 10**5 else "a" * 10**5,
            "|".join(f"{rng.random()}" for _ in range(min(count, 10**4))),
            rf"(.*a.{{{count}}}b.*|.*c.{{{count}}}d.*)+",
            rf"(\p{{L}}|\p{{N}}|\s){{1,{count}}}\w{{{count}}}",
        )
    )


def rules(rng):
    count = size(rng, 5000)
    return rng.choice(
        (
            "root ::= "
            + " ".join(f"r{i}" for i in range(count))
            + "".join(f'\nr{i} ::= "a" | ""' for i in range(count)),
            "root ::= r0" + "".join(f"\nr{i} ::= r{i + 1} r{i + 1}" for i in range(count)) + f'\nr{count} ::= "a"',
            "root ::= " + "(" * count + '"a"' + ")" * count,
            'root ::= root root | "a" | ""',
        )
    )


def pattern(rng):
    return any_of({"const": "n"}, spelt(f"^{expression(rng)}$"))


def values(rng):
    return {"enum": [rng.choice((i, f"word {i}", {"a": i})) for i in range(size(rng, 200_000))]}


def constant(rng):
    return rng.choice((any_of({"const": 1}), {})) | {"const": rng.choice(("x", "hello ", "ö")) * size(rng, 3_000_000)}


def recursion(rng):
    depth, itself = size(rng, 100_000), {"$ref": "#"}
    if rng.random() < 0.3:
        return '{"anyOf":[' * depth + "{}" + "]}" * depth
    return rng.choice(
        (
            thing({f"p{i}": itself for i in range(min(depth, 5000))}, []),
            thing({f"p{i}": any_of(itself, whole(0, 9)) for i in range(min(depth, 2000))}),
            rows(itself, depth, depth),
            {"type": "array", "prefixItems": [any_of(itself, {})] * min(depth, 2000), "minItems": depth},
            thing({"a": itself}),
        )
    )
