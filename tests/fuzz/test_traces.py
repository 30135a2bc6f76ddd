"""Random recordings: hostile texts, odd numbers, lines that are changed, left out or said twice."""

import json
import random

from children import on_terminal
from damage import ODD, damaged, with_odd_values
from fuzzing import cases, in_child, specdec
from hostile import assert_shown, payload, trace


def recording(chance: random.Random) -> bytes:
    lines = [json.loads(line) for line in trace(payload(chance)).splitlines()]
    lines[2:2] = [{**lines[2], "index": 2 + i, "at": 0.021 + i / 1e6} for i in range(chance.choice((0, 0, 1, 30)))]
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(lines))
        kind = chance.random()
        if kind < 0.8:
            lines[at] = with_odd_values(chance, lines[at], (*ODD, payload(chance), payload(chance)))
        elif kind < 0.9:
            del lines[at]
        else:
            lines.insert(at, lines[chance.randrange(len(lines))])
        if not lines:
            break
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return damaged(chance, data) if chance.random() < 0.15 else data


@cases(4000)
def test_traces(tmp_path, case, chance):
    path = tmp_path / "run.jsonl"
    path.write_bytes(recording(chance))
    flags = chance.choice(((), ("-v",), ("-o", tmp_path / "run.svg"), ("-o", tmp_path / "run.html")))
    args = ["replay", str(path), *map(str, flags)]
    if case % 4 == 0:
        ended = in_child(on_terminal, [*args, "--speed", "1e300"], TERM="xterm")
        assert_shown(ended.text, terminal=True)
    else:
        ended = specdec(*args)
        assert_shown(ended.told)
    ended.assert_alive(ascii((args, path.read_bytes()[:5000])))
    for page in (*tmp_path.glob("*.svg"), *tmp_path.glob("*.html")):
        assert_shown(page.read_text("utf-8"))
