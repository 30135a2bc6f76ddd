"""Files and answers in which something is wrong: bytes, and JSON."""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**49, 2**63, 2**64, 10**400, 0.1, 5.5, 1e-320, 1e308, float("nan")),
    *(float("inf"), "", "x", "\x1b]52;c;eA==\x07", "\u202e", "\u2028", "\ud800", "x" * 10**6, "%s{}", "1", "\0"),
    *("0" * 40, "0" * 64 + "\n", "../../evil", [], {}, [None], {"": None}, [[]], {"x": {"x": {}}}, [0] * 10**5),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and under which key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def with_odd_values(chance: random.Random, value: Any, odd: Sequence[Any] = ODD) -> Any:
    """A JSON value in which one value or two are others, are missing or are there twice. Most numbers stay numbers."""
    top = [copy.deepcopy(value)]
    for _ in range(chance.choice((1, 1, 1, 2))):
        holder, key = chance.choice([*places(top)])
        way = chance.random()
        if way < 0.1 and holder is not top:
            del holder[key]
        elif way < 0.2 and isinstance(holder, list) and holder is not top:
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            number = isinstance(holder[key], (int, float))
            same = [each for each in odd if isinstance(each, (int, float)) == number]
            holder[key] = copy.deepcopy(chance.choice(same if chance.random() < 0.8 else odd))
    return top[0]


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Some bytes are others, or the end is missing, or something follows it."""
    way = chance.randrange(3)
    if way == 0:
        return data[: chance.randrange(len(data) + 1)]
    if way == 1:
        return data + chance.choice((b"\0", b"\xff", b"\n", b"]", b"{}\n", b"x" * 10**6))
    content = bytearray(data)
    for _ in range(chance.choice((1, 3, 30)) if content else 0):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def spoilt(chance: random.Random, text: bytes) -> bytes:
    """A JSON file with something wrong in it."""
    match chance.randrange(8):
        case 0:
            return chance.choice((b"[", b'{"a":')) * 10**5
        case 1:
            return chance.choice((text.replace(b"1", b"1" * 5000, 1), text + text, text + b" " * (70 << 20)))
        case 2:
            return text.decode().encode(chance.choice(("utf-16", "utf-32", "utf-8-sig")))
        case 3 | 4:
            return damaged(chance, text)
    return json.dumps(with_odd_values(chance, json.loads(text))).encode()
