"""A seed, `--bitwise`, and what is kept of costs: what the command line promises, and how it says what it cannot."""

import json
import math

import pytest
import tiny
from driver import PROMPT, TARGET, assert_refused, run, told
from exactness import spoilt

from specdec_cli.decoding.rules import RULES
from specdec_cli.weights import pass_costs as costing
from specdec_cli.weights import pass_costs as saved_costs

SAMPLED = ["--temp", 0.8, "--seed", 7, "-n", 24]
TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return"


def found(*args):
    return told("run", *args)


def test_a_seed_fixes_the_text_whatever_drafts_it():
    alone = found(TEXT, *SAMPLED, "--drafter", "none")
    assert alone["accept"] == "coupled"
    for flags in (["-k", 3], [], ["-k", 6, "--tree", 3], ["--drafter", "ngram"], ["--drafter", "ngram+model", "-k", 2]):
        assert found(TEXT, *SAMPLED, *flags)["tokens"] == alone["tokens"], flags
    baseline = found(TEXT, *SAMPLED, "--baseline")["baseline"]
    assert baseline["identical"] is True and baseline["first_divergence"] is None


def test_without_a_seed_the_rule_is_that_which_accepts_most():
    seed, rejection = ["--seed", 1], ["--accept", "rejection"]
    for flags, rule in (([], "rejection"), (seed, "coupled"), ([*seed, *rejection], "rejection")):
        assert found(PROMPT, "-n", 1, *flags)["accept"] == rule
    assert found(PROMPT, "-n", 1, "--temp", 0.8, "--bitwise")["accept"] == "coupled"


def test_a_wrong_answer_ends_a_run_with_an_error(monkeypatch):
    monkeypatch.setitem(RULES, "rejection", spoilt("match"))
    done = run(TEXT, "-n", 16, "-k", 3, "--baseline")
    assert done.exit_code == 1 and "WRONG" in done.stderr
    assert "the answer is not the target's own" in done.stderr


def test_bitwise_says_which_passes_agree_and_gives_the_targets_text():
    alone = found(TEXT, "-n", 24, "--drafter", "none", "--bitwise")
    done = run(TEXT, "-n", 24, "-k", 5, "--bitwise", "--baseline", "-v")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0 and "agree bit for bit" in said and "same text" in said
    assert found(TEXT, "-n", 24, "-k", 5, "--bitwise")["tokens"] == alone["tokens"]


def test_what_bitwise_cannot_promise_is_refused(tmp_path):
    mamba = tiny.write(tmp_path / "mamba.gguf", "mamba")
    for flags, *says in (
        (["--temp", 0.8, "--accept", "rejection"], "--accept rejection", "--accept coupled or match"),
        (["--tree", 3], "--tree 3"),
        (["--drafter", "lookahead"], "lookahead"),
        (["-m", mamba, "--drafter", "ngram"], "mamba.gguf", "recurrent"),
    ):
        assert_refused(run(PROMPT, "--bitwise", *flags), 2, *says)


@pytest.mark.slow
def test_a_second_start_measures_nothing_unless_what_was_kept_cannot_be_used(monkeypatch, nothing_known):
    monkeypatch.setattr(costing, "BUSY_RATIO", math.inf)  # what a busy machine took is measured again
    found(TEXT, "-n", 8)
    with monkeypatch.context() as patch:
        patch.setattr(costing, "pass_seconds", None)
        again = found(TEXT, "-n", 8)
        assert again["timing"]["measuring_s"] == 0 and again["notes"] == []
    path = saved_costs.path_of(TARGET, costing.timing_key(1))
    path.write_text(json.dumps({**json.loads(path.read_text()), "verify": {"1": -3}}))
    again = found(TEXT, "-n", 8)
    assert again["timing"]["measuring_s"] > 0
    assert [note for note in again["notes"] if "measured again" in note and "Expected" in note]
    assert found(TEXT, "-n", 8)["notes"] == [], "and kept again"
