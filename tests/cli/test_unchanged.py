"""Answers, `run --json`, `--trace` and `replay` stay as they were recorded.

They are those of a pair that rounds nothing (tests/tables.py), so that they are the same on every processor.
To accept a change, delete what it concerns from `unchanged/` and run the test again.
"""

import json
from pathlib import Path

import pytest
from driver import assert_recorded, call, told

KEPT = Path(__file__).parent / "unchanged"
TEXT = 'def merge(left, right):\n    """Merge two sorted lists."""\n    result = []'
WAYS = {
    "greedy": ["-k", 4],
    "alone": ["--drafter", "none"],
    "threshold": ["-k", 6, "--draft-min-p", 0.4],
    "tree": ["-k", 6, "--tree", 3],
    "tree-sampled": ["-k", 6, "--tree", 3, "-s", 7, "--temp", 0.8, "--accept", "rejection"],
    "coupled": ["-k", 4, "-s", 7, "--temp", 0.8],
    "rejection": ["-k", 4, "-s", 7, "--temp", 0.8, "--accept", "rejection", "--top-k", 0, "--top-p", 1],
    "match": ["-k", 4, "-s", 7, "--temp", 0.8, "--accept", "match"],
    "typical": ["-k", 4, "-s", 7, "--temp", 0.8, "--accept", "typical"],
    "penalties": ["-k", 4, "--repeat-penalty", 1.3, "--frequency-penalty", 0.1, "--presence-penalty", 0.1],
    "ngram": ["-k", 4, "--drafter", "ngram"],
    "cascade": ["-k", 4, "--drafter", "ngram+model"],
    "cascade-model-first": ["-k", 4, "--drafter", "model+ngram"],
    "nested": ["-k", 6, "--drafter", "model<ngram"],
    "lookahead": ["-k", 16, "--drafter", "lookahead", "-s", 3],
    "bitwise": ["-k", 4, "--bitwise"],
    "stop": ["-k", 4, "--stop", "nrel", "--raw"],
}


def kept(name: str, found: object) -> None:
    assert_recorded(KEPT / f"{name}.json", found)


def still(data: object, key: str = "") -> object:
    """The same without what differs from run to run and from place to place."""
    if isinstance(data, dict):
        return {name: still(value, name) for name, value in data.items()}
    if isinstance(data, list) and key != "timing":
        return [round(value, 4) if isinstance(value, float) else still(value) for value in data]
    if key in ("target", "draft") and isinstance(data, str):
        return Path(data).name
    if isinstance(data, float):
        return "seconds" if key == "at" or key.endswith(("_s", "_ms", "seconds", "speedup")) else round(data, 4)
    return data


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_what_it_was(way, table_pair, tmp_path):
    trace = tmp_path / "trace.jsonl"
    found = still(told("run", TEXT, *table_pair, "-n", 40, "--trace", trace, "-t", 1, *WAYS[way]))
    lines = [still(json.loads(line)) for line in trace.read_text("utf-8").splitlines()]
    assert lines[0].pop("prompt") == TEXT
    steps = [
        [
            *(line[name] for name in ("why", "drafted")),
            [[token["id"], token["origin"], token["p"] is None, token["q"] is None] for token in line["tokens"]],
            *(line["rejected_text"], line.get("parents"), line.get("path"), line.get("distance") is None),
        ]
        for line in lines
        if line["event"] == "step"
    ]
    keys = sorted({(line["event"], *line) for line in lines})
    if "seed" in found and "-s" not in WAYS[way]:
        found["seed"] = lines[0]["seed"] = "drawn"
    kept(way, {"json": found, "head": lines[0], "keys": [" ".join(each) for each in keys], "steps": steps})


def test_an_old_recording_is_shown_as_it_was_and_drawn_with_its_settings(tmp_path):
    done = call("replay", KEPT / "old.jsonl")
    kept("replay", [done.exit_code, done.stdout, done.stderr])
    svg = tmp_path / "old.svg"
    assert call("replay", KEPT / "old.jsonl", "-o", svg).exit_code == 0
    assert "tree=3" in svg.read_text("utf-8")
