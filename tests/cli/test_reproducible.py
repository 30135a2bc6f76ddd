"""A seed, `--bitwise`, and what is kept of costs: what the command line promises, and how it says what it cannot."""

import json
import math
import os
import re
from dataclasses import replace

import pytest
import tiny
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, configure, run, told
from terminal import Terminal

from specdec_cli.decoding.rules import RULES
from specdec_cli.weights import pass_costs as costing
from specdec_cli.weights import pass_costs as kept_costs

SAMPLED = ["--temp", 0.8, "--seed", 7, "-n", 24]
TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return"


def found(*args):
    return told("run", *args)


# --- a seed ---


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
    honest = RULES["match"]

    def spoilt(draft, logits, sampler, rng):
        verdict = honest(draft, logits, sampler, rng)
        return replace(verdict, token=int(logits[verdict.accepted].argsort()[-2])) if draft.tokens else verdict

    monkeypatch.setitem(RULES, "rejection", spoilt)
    done = run(TEXT, "-n", 16, "-k", 3, "--baseline")
    assert done.exit_code == 1 and "WRONG" in done.stderr
    assert "the answer is not the target's own: computed again" in done.stderr and "please report it" in done.stderr


# --- bitwise ---


def test_bitwise_says_which_passes_agree_and_gives_the_targets_text():
    alone = found(TEXT, "-n", 24, "--drafter", "none", "--bitwise")
    done = run(TEXT, "-n", 24, "-k", 5, "--bitwise", "--baseline", "-v")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0 and "agree bit for bit" in said and "same text" in said
    assert found(TEXT, "-n", 24, "-k", 5, "--bitwise")["tokens"] == alone["tokens"]


def test_what_bitwise_cannot_promise_is_refused(tmp_path):
    mamba = tiny.write(tmp_path / "mamba.gguf", "mamba")
    for flags, *says in (
        (["--temp", 0.8, "--accept", "rejection"], "--accept rejection gives another", "--accept coupled or match"),
        (["--tree", 3], "--bitwise cannot be used with --tree 3", "Draft chains"),
        (["--drafter", "lookahead"], "--bitwise cannot be used with lookahead"),
        (["-m", mamba, "--drafter", "ngram"], "mamba.gguf", "recurrent"),
    ):
        assert_refused(run(PROMPT, "--bitwise", *flags), 2, *says)
    configure("bitwise: maybe\n")
    assert_refused(run(PROMPT), 2, "bitwise is", "true or false")


@pytest.mark.slow
def test_check_and_doctor_tell_what_was_measured(nothing_known):
    def said(*args):
        return " ".join(call(*args).stdout.split())

    assert "not measured yet: specdec run --bitwise" in said("check", TARGET, DRAFT)
    run(TEXT, "-n", 2, "--bitwise")
    assert "rounding passes of 1 to 17 tokens agree bit for bit" in said("check", TARGET, DRAFT)
    assert "rounding bundled target: passes of 1 to 17 tokens agree bit for bit" in said("doctor")


# --- what passes cost is kept ---


def files():
    return sorted((kept_costs.path_of(TARGET, costing.place_of(1)).parent).glob("*.json"))


@pytest.mark.slow
def test_a_second_start_measures_nothing_unless_what_was_kept_cannot_be_used(monkeypatch, nothing_known):
    monkeypatch.setattr(costing, "BUSY_RATIO", math.inf)  # what a busy machine took is measured again
    assert re.search("times +load .*s, measuring .*s, first token ", run(TEXT, "-n", 8, "-v").stderr)
    assert len(files()) == 2
    with monkeypatch.context() as patch:
        patch.setattr(costing, "pass_seconds", None)
        again = found(TEXT, "-n", 8)
        assert again["timing"]["measuring_s"] == 0 and again["notes"] == []
        assert "measuring" not in run(TEXT, "-n", 8, "-v").stderr
    path = kept_costs.path_of(TARGET, costing.place_of(1))
    for says, spoil in (("from another machine", {"machine": "a toaster"}), ("Expected", {"verify": {"1": -3}})):
        path.write_text(json.dumps({**json.loads(path.read_text()), **spoil}))
        again = found(TEXT, "-n", 8)
        assert again["timing"]["measuring_s"] > 0
        assert [note for note in again["notes"] if "measured again" in note and says in note]
    assert found(TEXT, "-n", 8)["notes"] == [], "and kept again"


def test_costs_that_cannot_be_kept_are_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert any("measured at every start" in note for note in found(TEXT, "-n", 8)["notes"])


# --- reading a prompt ---


@pytest.mark.slow
def test_a_long_prompt_shows_how_much_is_left(tmp_path):
    """Reading is made slow, for half a second must pass before anything is shown."""
    (tmp_path / "long.txt").write_text("x = [1, 2, 3]\n" * 80)
    (tmp_path / "sitecustomize.py").write_text(
        "import time; from specdec_cli.llama.passes import Passes as c; p = c.run\n"
        "def slowly(self):\n    time.sleep(0.15 * (self.batch.struct.n_tokens > 16)); return p(self)\n"
        "c.run = slowly\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    args = ("run", "-f", tmp_path / "long.txt", "-n", 4, "--drafter", "none", "--raw")
    with Terminal(*args, streams=("stderr",), env={"PYTHONPATH": path}) as terminal:
        seen = terminal.read(until="s left")
        assert terminal.ended() == 0 and "reading prompt \u2501" in seen and "/8" in seen
