"""`compare --json`, `tune --json` and kept results stay as they were recorded.

Comparisons are of a pair that rounds nothing (tests/tables.py), so that they are the same on every processor.
To accept a change, delete what it concerns from `unchanged/` and run the test again.
"""

import json
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from driver import assert_recorded, call

from specdec_cli.decoding import accept, rules
from specdec_cli.display import comparison_tables
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure import comparisons

KEPT = Path(__file__).parent / "unchanged"
RESULT = KEPT / "kept-comparison.json"
PROMPTS = [
    {"category": "loops", "prompt": "for i in range(10):\n    print("},
    {"category": "loops", "prompt": "while True:\n"},
    {"category": "classes", "prompt": "class Stack:\n    def push(self, item):\n        "},
    {"category": "long", "prompt": "x = 1\n" * 400},
]
WAYS = {
    "greedy": ["-k", 1, "--vs", "k=2,drafter=ngram", "--vs", "k=4"],
    "sampled": ["-k", 3, "-s", 5, "--temp", 0.8, "--vs", "accept=typical", "--vs", "accept=match,temp=0.5"],
    "alone": ["-k", 3, "--vs", "drafter=none,top-k=5", "--repeat", 1],
}
EXACT = {"acceptance_rate", "tokens_per_step", "per_position", "distance_per_token", "distance", "own_margin", "margin"}
OF_THE_MACHINE = {
    "devices",
    "platform",
    "versions",
    "build",
    "specdec",
    "rounding",
    "verdicts",
    "shares",
    "difference",
} | {"advice", "when", "command", "verdict"}


def still(data, key=""):
    """The same without what differs from run to run, from machine to machine and from place to place."""
    if key in OF_THE_MACHINE and not isinstance(data, int):
        return sorted(data) if isinstance(data, dict) else type(data).__name__
    if isinstance(data, dict):
        return {name: still(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [still(value, key) for value in data]
    if key in ("target", "draft") and isinstance(data, str):
        return Path(data).name
    if isinstance(data, float):
        return round(data, 4) if key in EXACT else "figure"
    return data


def check(name, data):
    """The order of the keys included."""
    text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in data.items()) + "\n"
    assert_recorded(KEPT / f"{name}.txt", text)


@pytest.fixture
def compared(table_pair, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(prompt) for prompt in PROMPTS))
    return partial(call, "compare", *table_pair, "-n", 12, "-t", 1, "-c", 256, "--json", "--prompts", path)


@pytest.mark.parametrize("way", WAYS)
def test_a_comparison_is_the_object_that_it_was(way, compared):
    done = compared(*WAYS[way])
    assert done.exit_code == 0, done.stderr
    check(f"compare-{way}", still(json.loads(done.stdout)))


def test_wrong_answers_are_told_as_they_were(compared, monkeypatch):
    def second_best(draft, logits, sampler, rng):
        verdict = accept.match(draft, logits, sampler, rng)
        if verdict.kind == "bonus":
            return replace(verdict, token=int(logits[verdict.accepted].argsort()[-2]))
        return verdict

    monkeypatch.setitem(rules.RULES, "rejection", second_best)
    done = compared("-k", 3, "--repeat", 1)
    assert done.exit_code == 1
    check("compare-wrong", {**still(json.loads(done.stdout)), "stderr": done.stderr})


@pytest.mark.parametrize("flags", [(), ("--temp", "0.8")], ids=["greedy", "sampled"])
def test_a_prediction_is_the_object_that_it_was(flags):
    """From the recordings that come with the bundled pair: the same figures everywhere."""
    done = call("tune", "--what-if", "h200", "--json", *flags)
    exact = json.loads(done.stdout, parse_float=lambda figure: round(float(figure), 6))
    check(f"tune-{'sampled' if flags else 'greedy'}", exact)


@pytest.mark.parametrize("form", ["screen", "markdown"])
def test_a_kept_result_is_read_and_shown_as_it_was(form, snapshot):
    kept = comparisons.load(str(RESULT))
    console = SafeConsole(file=StringIO(), width=100, _environ={})
    parts = [comparison_tables.markdown(kept)]
    if form == "screen":
        parts = [*comparison_tables.tables(kept), comparison_tables.against(kept, kept)]
    for part in parts:
        console.print(part, markup=False)
    snapshot(f"comparison_{form}.txt", console.file.getvalue())
