"""`specdec compare` on the bundled pair: what is measured, what is claimed, what is refused."""

from __future__ import annotations

import json
import signal
import time

import pytest
from claims import ratios_in
from driver import DRAFT, TARGET, assert_refused, call, start, succeeded
from exactness import second_best

from specdec_cli.decoding import rules
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.display import comparison_tables
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine import proof
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure import kept_comparisons
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.measure.variants import ALONE

PROMPTS = ("def median(values):\n    return", "class Stack:\n    def push(self, item):\n        ")


def compare(*args):
    """With drafts of a fixed length, so that there are some whatever this machine's speeds are."""
    return call("compare", "-k", "3", "-n", 16, *args)


def result_of(text):
    return ComparisonResult.from_json(text)


def measured(*args):
    return result_of(succeeded("compare", "-k", "3", "-n", 16, "--json", *args).stdout)


# --- the measurement ---


def test_the_figures_are_those_of_the_trials_which_start_afresh_in_alternating_order():
    result = measured(*PROMPTS, "--vs", "k=1", "--repeat", 3)
    assert len(result.trials) == 3 * 2 * 3 and not result.partial
    assert result.noise[ALONE] >= 0
    assert result.exactness["k=3"] == {"identical": 6, "rounding": 0, "wrong": 0, "not classified": 0}
    for summary in result.summaries:
        speeds = sorted(trial.tokens_per_s for trial in result.trials if trial.variant == summary.variant)
        assert speeds[0] <= summary.tokens_per_s <= speeds[-1]
    assert {"1", "4"} <= set(result.costs["verify"])
    assert all(result.verdicts[variant] for variant in ("k=3", "k=1"))
    trials = [trial for trial in result.trials if trial.prompt == result.trials[0].prompt]
    orders = [[trial.variant for trial in trials[start : start + 3]] for start in (0, 3, 6)]
    assert orders[0] == orders[1][::-1] == orders[2] and orders[0][0] == ALONE
    assert len({(trial.tokens, trial.prompt_tokens) for trial in trials}) == 1


def test_prompts_from_a_file_by_category_but_for_those_that_are_too_long(tmp_path):
    path = tmp_path / "mine.jsonl"
    prompts = [("a", "def f(x):"), ("b", "import"), ("b", "x = 1\n" * 400)]
    path.write_text("".join(json.dumps({"category": name, "prompt": text}) + "\n" for name, text in prompts))
    result = measured("--prompts", path)
    assert {trial.category for trial in result.trials} == {"a", "b"} and len(result.skipped) == 1
    assert "skipped because too long for the context: 1 prompt" in comparison_tables.markdown(result)
    assert {trial.category for trial in measured("--prompts", path, "--category", "a").trials} == {"a"}
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    assert_refused(compare("--prompts", path), 2, "line 2")


# --- what it looks like ---


def test_the_table_and_the_verdict_and_the_same_in_markdown():
    shown = succeeded("compare", "-k", 3, "-n", 16, *PROMPTS).stdout
    assert "target alone" in shown and "k=3" in shown and "4 identical" in shown
    assert shown.startswith("Too few prompts: 2 were measured") and "Measure more prompts." in shown
    assert not ratios_in(shown)
    assert max(map(len, shown.splitlines())) <= 80
    shown = compare("-n", 8, "--md", "--limit", 1, *PROMPTS).stdout
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert tables and {line.count("|") for line in tables} == {11, 5}
    assert shown.startswith(("**Too few prompts: 1 was measured", "**No: nothing was", "**No: hardly any"))
    assert "speedup" not in call("ls", "--json", "--here").stdout, "nothing is kept for the list"


def test_results_are_kept_and_compared_with():
    def against(*args):
        return " ".join(compare(*args, "--against", "first").stdout.split())

    assert compare(*PROMPTS, "--save", "first").exit_code == 0
    assert list(kept_comparisons.load("first").speeds(ALONE)) == list(PROMPTS)  # by its text, not by its number
    same = against(*PROMPTS)
    assert "then" in same and "target alone" in same.split("not paired")[1]
    for other in (("import os",), (*PROMPTS, "--temp", 0.5)):
        assert "no variant and prompt in common" in against(*other)  # other prompts, another sampling
    other = against("-m", DRAFT, "-md", TARGET, *PROMPTS)
    assert (
        "about other models" in other and "now / then" not in other and "the draft is larger than the target" in other
    )
    assert "first  20" in compare("--list").stdout
    (kept,) = json.loads(compare("--list", "--json").stdout)
    assert kept["name"] == "first" and kept["when"].startswith("20")


# --- what fails, and interrupts ---


def test_the_same_two_answers_are_compared_once(monkeypatch):
    proofs, divergence = [], proof.divergence
    monkeypatch.setitem(rules.RULES, "rejection", second_best)
    monkeypatch.setattr(proof, "divergence", lambda *answers: proofs.append(answers) or divergence(*answers))
    result = result_of(compare("--json", "-t", 1, "--repeat", 3, PROMPTS[0], *PROMPTS).stdout)
    assert result.exactness["k=3"] == {"identical": 0, "rounding": 0, "wrong": 9, "not classified": 0}
    assert len(proofs) == 2 and len(result.divergences) == 9


def test_an_interrupt_while_answers_are_compared(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setitem(rules.RULES, "rejection", second_best)
    monkeypatch.setattr(proof, "divergence", interrupted)
    result = result_of(compare("--json", *PROMPTS).stdout)
    assert len(result.trials) == 8
    assert result.exactness["k=3"]["not classified"] > 0
    assert "different, not classified" in comparison_tables.markdown(result)


def test_a_trial_that_fails_keeps_those_before_it(monkeypatch):
    verify, calls = LlamaTarget.verify, iter(range(10**6))

    def fail(self, pending, draft):
        if next(calls) > 70:
            raise SpecdecError("the GPU is lost", "Restart.")
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", fail)
    done = compare("--json", *PROMPTS)
    result = result_of(done.stdout)
    assert done.exit_code == 1 and "the GPU is lost" in done.stderr
    assert result.partial and result.trials and "the GPU is lost" in result.notes


def test_a_full_disk_costs_the_file_and_not_the_result():
    done = compare("-n", 2, "--repeat", 1, PROMPTS[0], "-o", "/dev/full", "--save", "kept")
    assert done.exit_code == 1
    assert "k=3" in done.stdout and "No space left" in done.stderr
    assert [name for name, _ in kept_comparisons.kept()] == ["kept"]


def test_a_result_that_cannot_be_saved_still_has_its_page(monkeypatch, tmp_path):
    def fail(name, result):
        raise SpecdecError("the disk is gone", "Find it.")

    monkeypatch.setattr(kept_comparisons, "store", fail)
    done = compare("-n", 2, "--repeat", 1, PROMPTS[0], "-o", tmp_path / "page.html", "--save", "kept")
    assert done.exit_code == 1 and "the disk is gone" in done.stderr
    assert "k=3" in done.stdout and "k=3" in (tmp_path / "page.html").read_text("utf-8")


def test_a_drafter_that_fails_midway_is_named(monkeypatch):
    def fail(self, context, budget, policy):
        raise ValueError("out of ideas")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    notes = measured(*PROMPTS).notes
    assert [note for note in notes if "in 4 of 4 answers" in note and "out of ideas" in note]


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(tmp_path):
    result = None
    for wait in (2, 6, 18, 54):  # a busy machine may have measured nothing yet
        process = start("compare", "-k", 3, "--prompts", "python", "--repeat", 200, "--json", "--save", "cut")
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert process.returncode == 130 and b"Traceback" not in errors
        assert out or b"specdec: interrupted" in errors
        if out and len((result := result_of(out)).trials) > 2:
            break
    assert result.partial
    assert result.exactness["k=3"]["identical"] > 0 and result.divergences == ()
    assert "PARTIAL" in comparison_tables.markdown(result)
    assert json.loads((tmp_path / "data/specdec/comparisons/cut.json").read_text()) == json.loads(out)


# --- what is refused ---


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--prompts", "pyhton"], 2, "pyhton"),
        (["--repeat", "0"], 2, "repeat cannot be 0"),
        (["--json", "--md"], 2, "can't be used together"),
        (["x", "--prompts", "python"], 2, "prompts and a suite"),
        ([" "], 2, "a prompt is empty"),
        (["--vs", "k4"], 2, "does not parse"),
        (["-o", "/dev/null/page.html"], 2, "cannot write"),
        (["--save", "../up"], 2, "cannot be a result's name"),
        (["--against", "x", "--md"], 2, "--against can't be used"),
        (["--sweep", "k"], 2, "the sweep 'k' does not parse"),
        (["--against", "nobody"], 2, "no saved result"),
        (["x = 1\n" * 400], 1, "too long for a context"),
    ],
)
def test_bad_input(args, code, says):
    assert says in assert_refused(compare(*args), code)


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"format": 1, "trials": [{}]}'])
def test_a_file_that_is_no_result(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert_refused(compare("x = ", "--against", path), 1, "x.json")
