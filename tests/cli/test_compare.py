"""`specdec compare` on the bundled pair: what is measured, what is claimed, what is refused."""

from __future__ import annotations

import json
import signal

import pytest
from claims import ratios_in
from driver import DRAFT, TARGET, assert_refused, call, succeeded
from exactness import spoilt

from specdec_cli.cli import compare as command
from specdec_cli.decoding import rules
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.display import comparison_tables
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine.session import Session
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


# --- what it looks like ---


def test_the_table_and_the_verdict_and_the_same_in_markdown():
    shown = succeeded("compare", "-k", 3, "-n", 16, *PROMPTS).stdout
    assert "target alone" in shown and "k=3" in shown and "4 identical" in shown
    assert shown.startswith("Too few prompts: 2 were measured") and "Measure more prompts." in shown
    assert not ratios_in(shown)
    shown = compare("-n", 8, "--md", "--limit", 1, *PROMPTS).stdout
    assert shown.startswith(("**Too few prompts: 1 was measured", "**No: nothing was", "**No: hardly any"))
    assert "\n|" in shown
    assert "speedup" not in call("ls", "--json", "--here").stdout, "nothing is kept for the list"


def test_results_are_kept_and_compared_with(tmp_path):
    def against(*args):
        return " ".join(compare(*pair, *args, "--against", "first").stdout.split())

    pair = "-m", tmp_path / "caf\udce9.gguf", "-md", DRAFT  # a name that isn't UTF-8
    pair[1].symlink_to(TARGET)
    assert (before := compare("--list")).stdout == "" and "No results" in before.stderr
    assert compare(*pair, *PROMPTS, "--save", "first").exit_code == 0
    assert list(kept_comparisons.load("first").speeds(ALONE)) == list(PROMPTS)  # by its text, not by its number
    same = against(*PROMPTS, "-c", 1024)  # another context, with the same models
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


def test_the_command_on_a_page_names_no_folder():
    typed = [
        "-m/home/alice/x.gguf",
        "-o",
        "/home/alice/page.html",
        "--draft=/home/a=b/y.gguf",
        "-md=/home/alice/y.gguf",
        "-n20",
        "def f(x):",
    ]
    assert command._command(typed) == "specdec -mx.gguf -o page.html --draft=y.gguf -md=y.gguf -n20 'def f(x):'"


# --- what fails, and interrupts ---


def test_an_interrupt_while_answers_are_compared(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setitem(rules.RULES, "rejection", spoilt("match"))
    monkeypatch.setattr(Session, "divergence", interrupted)
    result = result_of(compare("--json", *PROMPTS).stdout)
    assert len(result.trials) == 8
    assert result.exactness["k=3"]["not classified"] > 0
    assert "different, not classified" in comparison_tables.markdown(result)


def in_mid_trial(monkeypatch, happens):
    verify, calls = LlamaTarget.verify, iter(range(10**6))

    def verify_or_fail(self, pending, draft):
        if next(calls) == 71:
            happens()
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", verify_or_fail)


def test_a_trial_that_fails_keeps_those_before_it(monkeypatch):
    def fail():
        raise SpecdecError("the GPU is lost", "Restart.")

    in_mid_trial(monkeypatch, fail)
    done = compare("--json", *PROMPTS)
    result = result_of(done.stdout)
    assert done.exit_code == 1 and "the GPU is lost" in done.stderr
    assert result.partial and result.trials and "the GPU is lost" in result.notes


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    in_mid_trial(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    done = compare("--json", *PROMPTS, "--save", "cut")
    result = result_of(done.stdout)
    assert done.exit_code == 130 and "Traceback" not in done.stderr
    assert result.partial and result.trials and result.divergences == ()
    assert "PARTIAL" in comparison_tables.markdown(result)
    assert kept_comparisons.load("cut") == result


def test_a_drafter_that_fails_midway_is_named(monkeypatch):
    def fail(self, context, budget, policy):
        raise ValueError("out of ideas")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    notes = measured(*PROMPTS).notes
    assert [note for note in notes if "in 4 of 4 answers" in note and "out of ideas" in note]


# --- what is refused ---


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--repeat", "0"], 2, "rounds can't be 0"),
        (["--json", "--md"], 2, "can't be used together"),
        (["x", "--prompts", "python"], 2, "prompts and a suite"),
        ([" "], 2, "prompt 1: the prompt is empty"),
        (["x", "caf\udce9"], 2, "prompt 2: the prompt has half a surrogate pair"),
        (["--vs", "k4"], 2, "does not parse"),
        (["-o", "/dev/null/page.html"], 2, "cannot write"),
        (["--save", "../up"], 2, "cannot be a result's name"),
        (["--against", "x", "--md"], 2, "--against can't be used"),
        (["--sweep", "k"], 2, "the sweep 'k' does not parse"),
        (["x = 1\n" * 400], 1, "too long for a context"),
    ],
)
def test_bad_input(args, code, says):
    assert says in assert_refused(compare(*args), code)
