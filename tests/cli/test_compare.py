"""`specdec compare`: what is measured, what is claimed, what is refused. On the bundled pair, and on one that rounds
nothing (tests/tables.py), whose answers are the same on every processor.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from io import StringIO
from pathlib import Path

import loras
import pytest
from claims import ratios_in
from driver import DRAFT, TARGET, assert_refused, call, complaint, succeeded
from exactness import spoilt

from specdec_cli.cli import compare as command
from specdec_cli.decoding import rules
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.display import comparison_tables
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine.session import Session
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure import saved_comparisons
from specdec_cli.measure.compare import ComparisonResult, ComparisonRun
from specdec_cli.measure.variants import ALONE

PROMPTS = ("def median(values):\n    return", "class Stack:\n    def push(self, item):\n        ")


def compare(*args):
    """With drafts of a fixed length, so that there are some whatever this machine's speeds are."""
    return call("compare", "-k", "3", "-n", 16, *args)


def result_of(text):
    return ComparisonResult.from_json(text)


def measured(*args):
    return result_of(succeeded("compare", "-k", "3", "-n", 16, "--json", *args).stdout)


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
    result = measured("--prompts", path, "--category", "b")
    assert {trial.category for trial in result.trials} == {"b"} and len(result.skipped) == 1
    assert "skipped because too long for the context: 1 prompt" in comparison_tables.markdown(result)


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

    pair = ("-m", tmp_path / "caf\udce9.gguf", "-md", DRAFT, "-n", 6, "--repeat", 1)  # a name that isn't UTF-8
    pair[1].symlink_to(TARGET)
    assert (before := compare("--list")).stdout == "" and "No results" in before.stderr
    assert compare(*pair, *PROMPTS, "--save", "first").exit_code == 0
    assert list(saved_comparisons.load("first").speeds(ALONE)) == list(PROMPTS)  # by its text, not by its number
    same = against(*PROMPTS, "-c", 1024)  # another context, with the same models
    assert "then" in same and "target alone" in same.split("not paired")[1]
    for other in (("import os",), (*PROMPTS, "--temp", 0.5)):
        assert "no variant and prompt in common" in against(*other)  # other prompts, another sampling
    other = against("-m", DRAFT, "-md", TARGET, *PROMPTS)
    assert "about other models" in other and "now / then" not in other
    assert "the draft is larger than the target" in other
    assert "first  20" in compare("--list").stdout
    (kept,) = json.loads(compare("--list", "--json").stdout)
    assert kept["name"] == "first" and kept["when"].startswith("20")


def test_a_page_names_files_and_no_folder(tmp_path):
    typed = ["-m/home/alice/x.gguf", "-o", "/home/alice/page.html", "--draft=/home/a=b/y.gguf"]
    typed += ["-md=/home/alice/y.gguf", "-n20", "-k", "8", ".", "def f(x):", "/think about 1/2"]
    typed += [str(tmp_path / "linked.gguf"), str(tmp_path / "of a b.html")]
    (tmp_path / "linked.gguf").symlink_to(TARGET)
    shown = "specdec -mx.gguf -o page.html --draft=y.gguf -md=y.gguf -n20 -k 8 . 'def f(x):' '/think about 1/2'"
    assert command._command(typed) == f"{shown} linked.gguf 'of a b.html'"
    adapter = loras.write(tmp_path / "style.gguf", TARGET, strength=0.7)
    corpus, page = tmp_path / "queue.py", tmp_path / "page.html"
    corpus.write_text("import os\n")
    asked = ("x", "-n", 4, "--repeat", 1, "--vs", "drafter=ngram,k=6", "--lora", f"{adapter}:0.9", "-o", page)
    result = json.loads(succeeded("compare", *asked, "--ngram-corpus", corpus, "--json").stdout)
    used = {each["name"]: bool(each["settings"]["ngram_corpus"]) for each in result["variants"]}
    assert [name for name, has in used.items() if has] == ["drafter=ngram,k=6"]
    assert not any(found["wrong"] for found in result["exactness"].values())
    text = page.read_text("utf-8")
    assert "style.gguf:0.9" in text and "a corpus of " in text and str(tmp_path) not in text


def test_an_interrupt_while_answers_are_compared(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setitem(rules.RULES, "rejection", spoilt("match"))
    monkeypatch.setattr(Session, "divergence", interrupted)
    result = result_of(compare("--json", *PROMPTS).stdout)
    assert len(result.trials) == 8
    assert result.exactness["k=3"]["not classified"] > 0
    assert "different, not classified" in comparison_tables.markdown(result)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_trial_that_fails_or_is_interrupted_keeps_those_before_it(monkeypatch, interrupted):
    verify, calls = LlamaTarget.verify, iter(range(10**6))

    def verify_or_fail(self, pending, draft):
        if next(calls) == 71:
            if not interrupted:
                raise SpecdecError("the GPU is lost", "Restart.")
            signal.raise_signal(signal.SIGINT)
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", verify_or_fail)
    done = compare("--json", *PROMPTS, "--save", "cut")
    result = result_of(done.stdout)
    assert done.exit_code == (130 if interrupted else 1) and "Traceback" not in done.stderr
    assert result.partial and result.trials and result.divergences == ()
    assert interrupted or ("the GPU is lost" in done.stderr and "the GPU is lost" in result.notes)
    assert "PARTIAL" in comparison_tables.markdown(result)
    assert saved_comparisons.load("cut") == result


def test_the_threads_are_those_at_the_end(monkeypatch):
    """While the machine is busy, a session uses fewer."""
    monkeypatch.setattr(ComparisonRun, "_warm_up", lambda _, session, __: setattr(session.models.target, "threads", 7))
    assert measured(PROMPTS[0], "--repeat", 1).machine.threads == 7


def test_a_drafter_that_fails_midway_is_named(monkeypatch):
    def fail(self, context, budget, policy):
        raise ValueError("out of ideas")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    notes = measured(*PROMPTS).notes
    assert [note for note in notes if "in 4 of 4 answers" in note and "out of ideas" in note]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--repeat", "0"], 2, "rounds can't be 0"),
        (["--json", "--md"], 2, "can't be used together"),
        (["x", "--prompts", "python"], 2, "prompts and a suite"),
        ([" "], 2, "prompt 1: the prompt is empty"),
        (["x", "caf\udce9"], 2, "prompt 2: the prompt has half a surrogate pair"),
        (["--vs", "k4"], 2, "does not parse"),
        (["x", "--drafter", "none", "--vs", "k=4"], 2, "nothing to compare"),
        (["-o", "/dev/null/page.html"], 2, "cannot write"),
        (["--save", "../up"], 2, "cannot be a result's name"),
        (["--against", "x", "--md"], 2, "--against can't be used"),
        (["x", "--against", "nobody"], 2, "nobody"),
        (["x", "--ngram-corpus", __file__], 2, "--ngram-corpus is for"),
        (["--sweep", "k"], 2, "the sweep 'k' does not parse"),
        (["x = 1\n" * 400], 1, "too long for a context"),
    ],
)
def test_bad_input(args, code, says):
    assert says in assert_refused(compare(*args), code)


# --- where nothing rounds ---

TEXTS = [
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
    path.write_text("\n".join(json.dumps(prompt) for prompt in TEXTS))
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
    assert f" at token {found['divergences'][0]['position'] + 1}; " in what


def test_a_kept_result_is_read_and_shown_as_it_was(snapshot):
    kept = saved_comparisons.load(str(Path(__file__).parent / "unchanged" / "saved-comparison.json"))
    forms = {
        "screen": [*comparison_tables.tables(kept), comparison_tables.against(kept, kept)],
        "markdown": [comparison_tables.markdown(kept)],
    }
    for form, parts in forms.items():
        console = SafeConsole(file=StringIO(), width=100, _environ={})
        for part in parts:
            console.print(part, markup=False)
        snapshot(f"comparison_{form}.txt", console.file.getvalue())
