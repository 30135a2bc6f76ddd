"""`--tree`: trees from the command line to the recording and back, where they help nobody, and where they cannot be."""

from dataclasses import replace

import pytest
import tiny
from driver import PROMPT, assert_refused, call, run, told
from test_replay import changed, on_terminal, record, step

from specdec_cli.decoding.types import Done, Prefill, Step, Token
from specdec_cli.measure.traces import read_trace

TEXT = "def median(values):\n    return"


def answer(*args):
    return told("run", TEXT, "-n", 24, *args)


@pytest.fixture(scope="module")
def alone():
    return answer("--drafter", "none", "-t", 1)


def steps_of(trace):
    return [event for event in read_trace(trace)[1] if isinstance(event, Step)]


# --- an answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "k"), [(3, "auto"), (4, 8), (8, 2)])
def test_a_tree_gives_the_answer_of_the_target_alone(alone, width, k):
    tree = answer("--tree", width, "-k", k)
    assert tree["tokens"] == alone["tokens"]
    assert (tree["tree"], alone["tree"], tree["draft_tokens"]) == (width, 1, k)
    stats = tree["stats"]
    assert stats["drafted"] == sum(n * count for n, count in enumerate(stats["lengths"]))
    assert stats["accepted"] == sum(n * count for n, count in enumerate(stats["histogram"]))
    assert k != 8 or len(stats["per_position"]) < 8, "positions are depths, of which a tree has fewer than tokens"


def test_chains_and_trees_in_one_answer(tmp_path):
    """ngram drafts chains, the model trees, over the same caches."""
    trace = tmp_path / "run.jsonl"
    prompt = "def merge(left, right):\n    result = []\n    while"
    both = ("--drafter", "ngram+model", "--tree", 4, "-k", 6)
    other = told("run", prompt, "-n", 60, *both, "--trace", trace, "--baseline")["baseline"]["first_divergence"]
    assert other is None or other["kind"] == "rounding"
    assert read_trace(trace)[1][-1].notes == ()
    steps = [event for event in steps_of(trace) if event.drafted]
    assert all((event.parents is not None) == (event.source == "model") for event in steps)
    assert {event.source for event in steps} == {"ngram", "model"}


# --- the setting --------------------------------------------------------------------------------------------------


def test_a_senseless_number_of_branches():
    for value in ("0", "65"):
        assert_refused(run(PROMPT, "--tree", value), 2, f"tree cannot be {value}", "1 (a chain) to 64")


@pytest.mark.parametrize(("target", "draft"), [("mamba", "llama"), ("llama", "mamba")])
def test_a_recurrent_memory(tmp_path, target, draft):
    big, small = (tiny.write(tmp_path / name, kind) for name, kind in (("big.gguf", target), ("small.gguf", draft)))
    asked = (PROMPT, "-m", big, "-md", small, "-n", 8, "-k", 3)
    name = "big.gguf" if target != "llama" else "small.gguf"
    refused = f"--tree 3 cannot be used with {name}"
    assert_refused(run(*asked, "--tree", 3), 2, refused, "recurrent", "without --tree")
    assert run(*asked).exit_code == 0


# --- recordings ---------------------------------------------------------------------------------------------------


def tree_events():
    """A tree of two first choices and two below the second of them; the second, and the first below it, stand."""
    tokens = Token(20, "kept ", "accepted", 0.5), Token(40, "deep ", "accepted", 0.6), Token(60, "own ", "correction")
    drafts = step(1, 0.5, *tokens, drafted=(10, 20, 30, 40, 50), rejected=("elder ", "uncle ", "below "))
    return [
        Prefill("target", 4, 0.01, 0.01),
        step(0, 0.1, Token(1, "first ", "plain")),
        replace(drafts, parents=(-1, -1, 0, 1, 3), path=(1, 3)),
        Done("stop", "", (), 1.0),
    ]


def test_a_tree_step_by_step(tmp_path):
    path = record(tmp_path / "run.jsonl", tree_events())
    assert read_trace(path)[1] == tree_events()
    with on_terminal(path, "--step") as terminal:
        terminal.read(until="prompt of 4 tokens")
        terminal.press(b" ")
        terminal.read(until="over the prompt")
        terminal.press(b" ")
        screen = terminal.read(until="below")
        assert "5 drafted by model in a tree, 2 accepted, then corrected" in screen
        rows = [line.split()[:5] for line in screen.split("\n") if "␣" in line]
        assert [row if "after" in row else row[:3] for row in rows] == [
            ["1", "elder␣", "rejected"],
            ["1", "kept␣", "accepted"],
            ["2", "deep␣", "accepted"],
            ["3", "below␣", "rejected"],
            ["own␣", "correction"],
            ["2", "uncle␣", "dropped", "after", "elder␣"],
        ]
        terminal.press(b" ")
        assert terminal.ended() == 0 and terminal.text.startswith("first kept deep own")


BAD = {
    "parents without a path": ([-1, 0, 1], None),
    "a path without parents": (None, [0]),
    "too few parents": ([-1, 0], [0]),
    "a parent of itself": ([-1, 1, 0], [0]),
    "a longer path than accepted": ([-1, 0, 1], [0, 1]),
    "a path of nobody": ([-1, 0, 1], [7]),
    "a path below the tree": ([-1, 0, 1], [-1]),
}


@pytest.mark.parametrize(("parents", "path"), BAD.values(), ids=BAD)
def test_trees_that_are_none(tmp_path, parents, path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(changed(2, parents=parents, path=path))
    assert assert_refused(call("replay", bad), 1, "line 4 is a damaged step: ").isprintable()
    bad.write_text(changed(2, tree_events(), path=[1, 4]))
    assert_refused(call("replay", bad), 1, "line 4 is a damaged step: the draft is not a tree")
