"""Random recordings: hostile texts, odd numbers, lines that are changed, left out or said twice."""

import json
import random
from functools import partial
from pathlib import Path

import fuzzing
import pytest
from children import on_terminal
from hostile import assert_shown, payload, trace

pytestmark = pytest.mark.fuzz
SHARDS = 8
ODD = (None, True, -1, 0, 1, 2**31, 2**53, 10**400, 1e308, 0.5, "", "x", [], [1], {}, [[]], "\ud83d")


def changed(value: object, chance: random.Random) -> object:
    """One of the values inside replaced, left out or said twice."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice([*value])
        if chance.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + chance.choice((0, 1, 1)) :]]
    return payload(chance) if chance.random() < 0.3 else chance.choice(ODD)


def recording(chance: random.Random) -> bytes:
    lines = [json.loads(line) for line in trace(payload(chance)).splitlines()]
    lines[2:2] = [{**lines[2], "index": 2 + i, "at": 0.021 + i / 1e6} for i in range(chance.choice((0, 0, 1, 30)))]
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(lines))
        kind = chance.random()
        if kind < 0.8:
            lines[at] = changed(lines[at], chance)
        elif kind < 0.9:
            del lines[at]
        else:
            lines.insert(at, lines[chance.randrange(len(lines))])
        if not lines:
            break
    data = bytearray("".join(json.dumps(line) + "\n" for line in lines).encode())
    if data and chance.random() < 0.15:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_traces(tmp_path, shard):
    fuzzing.try_all(4000 // SHARDS, f"traces/{shard}", partial(replayed, tmp_path))


def replayed(folder: Path, number: int, chance: random.Random) -> None:
    path = folder / "run.jsonl"
    path.write_bytes(recording(chance))
    flags = chance.choice(((), ("-v",), ("-o", folder / "run.svg"), ("-o", folder / "run.html")))
    args = ["replay", str(path), *map(str, flags)]
    about = ascii((args, path.read_bytes()[:5000]))
    if number % 4 == 0:
        ended = fuzzing.in_child(on_terminal, [*args, "--speed", "1e300"], TERM="xterm")
        assert_shown(ended.out.decode("utf-8", "replace"), terminal=True)
    else:
        ended = fuzzing.specdec(*args)
        assert_shown(ended.err.decode("utf-8", "replace"))
    assert ended.code in fuzzing.EXIT_CODES and "Traceback" not in ended.text, f"{about}\n{ended!a}"
    assert ended.seconds < 5 and ended.peak < fuzzing.MOST_BYTES, about
    for page in (*folder.glob("*.svg"), *folder.glob("*.html")):
        text = page.read_text("utf-8")
        page.unlink()
        assert_shown(text)
