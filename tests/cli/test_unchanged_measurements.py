"""Comparisons of a pair that rounds nothing (tests/tables.py), on every processor; and kept results, as they look."""

import json
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from driver import call, complaint
from exactness import spoilt

from specdec_cli.decoding import rules
from specdec_cli.display import comparison_tables
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure import kept_comparisons

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


@pytest.fixture
def compared(table_pair, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(prompt) for prompt in PROMPTS))
    return partial(call, "compare", *table_pair, "-n", 12, "-t", 1, "-c", 256, "--json", "--prompts", path)


@pytest.mark.parametrize("way", WAYS)
def test_every_variant_that_promises_it_writes_the_targets_own_text(way, compared):
    done = compared(*WAYS[way])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["skipped"], found["divergences"]) == (["4"], []), "the fourth is too long for the context"
    promised = [
        variant["name"]
        for variant in found["variants"][1:]
        if variant["baseline"] != variant["name"] and "typical" not in variant["name"]
    ]
    assert sorted(found["exactness"]) == sorted(promised)
    assert {counts["identical"] for counts in found["exactness"].values()} == {3 * found["rounds"]}
    assert not any(counts["wrong"] or counts["rounding"] for counts in found["exactness"].values())


def test_wrong_answers_are_told(compared, monkeypatch):
    monkeypatch.setitem(rules.RULES, "rejection", spoilt("match"))
    done = compared("-k", 3, "--repeat", 1)
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["exactness"]["k=3"]["wrong"] == len(found["divergences"]) == 3
    assert found["advice"] == []
    assert all(each["kind"] == "wrong" and "computed again" in each["bug"] for each in found["divergences"])
    what, do = complaint(done.stderr)
    assert "3 of the answers are not the target's own: k=3 differs on prompt 1" in what and "please report it" in do


@pytest.mark.parametrize("form", ["screen", "markdown"])
def test_a_kept_result_is_read_and_shown_as_it_was(form, snapshot):
    kept = kept_comparisons.load(str(RESULT))
    console = SafeConsole(file=StringIO(), width=100, _environ={})
    parts = [comparison_tables.markdown(kept)]
    if form == "screen":
        parts = [*comparison_tables.tables(kept), comparison_tables.against(kept, kept)]
    for part in parts:
        console.print(part, markup=False)
    snapshot(f"comparison_{form}.txt", console.file.getvalue())
