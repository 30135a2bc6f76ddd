"""`specdec compare` on the bundled pair: what is measured, what is claimed, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from conftest import DEMO
from specdec_cli.engine.session import Session
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.display import comparison_tables as comparison
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine.config import Settings
from specdec_cli.engine.variants import ALONE, make_arms
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.store import comparisons as results


@pytest.fixture(autouse=True)
def own_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def compare(*args):
    """With drafts of a fixed length, so that there are some whatever this machine's speeds are."""
    return CliRunner().invoke(app, ["compare", "-k", "3", *map(str, args)])


def measured(*args):
    done = compare("-n", 24, "--json", *args)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


PROMPTS = ("def median(values):\n    return", "class Stack:\n    def push(self, item):\n        ")
BASE = Settings(target="t.gguf", draft="d.gguf")


# --- arms ---


def names(*args, **options):
    return [(arm.name, arm.baseline) for arm in make_arms(replace(BASE, **options), *args)]


def test_by_default_the_target_alone_against_the_settings():
    assert names([], []) == [(ALONE, ALONE), ("k=auto", ALONE)]
    assert names([], [], draft_tokens=3) == [(ALONE, ALONE), ("k=3", ALONE)]
    assert make_arms(BASE, [], [])[0].settings.drafter == "none"


def test_versus_adds_and_a_sweep_makes():
    assert [name for name, _ in names(["k=4", "accept=match"], [])] == [ALONE, "k=auto", "k=4", "accept=match"]
    assert [name for name, _ in names(["k=auto"], [], draft_tokens=3)] == [ALONE, "k=3", "k=auto"]
    assert [name for name, _ in names([], ["k=1, 2,4,auto"])] == [ALONE, "k=1", "k=2", "k=4", "k=auto"]
    assert [name for name, _ in names(["k=8"], ["draft-min-p=0,0.5"], draft_tokens=3)] == [
        *(ALONE, "k=8", "draft-min-p=0", "draft-min-p=0.5"),
    ]


def test_an_arm_with_other_sampling_has_a_baseline_of_its_own():
    assert names(["k=8,temp=0.8"], []) == [
        (ALONE, ALONE),
        ("alone, temp=0.8", "alone, temp=0.8"),
        ("k=auto", ALONE),
        ("k=8,temp=0.8", "alone, temp=0.8"),
    ]
    assert [name for name, _ in names([], ["top-k=10,20"])] == [ALONE, "top-k=10", "top-k=20"]  # greedy knows no cuts


def test_without_a_drafter_there_is_only_the_baseline():
    assert names([], [], drafter="none") == [(ALONE, ALONE)]
    assert names(["k=2,drafter=model"], [], drafter="none") == [(ALONE, ALONE), ("k=2,drafter=model", ALONE)]


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("k", "does not parse", "key=value"),
        ("k=", "does not parse", "key=value"),
        ("=4", "does not parse", "key=value"),
        ("k=4,,", "does not parse", "key=value"),
        ("tmep=0.5", "cannot vary", "'temp'"),
        ("profile=x", "cannot vary", "What can"),
        ("k=four", "not a whole number", "k=4"),
        ("temp=hot", "not a number", "k=4"),
        ("k=0", "cannot be 0", "-k"),
        ("drafter=nothing", "no drafter", "model"),
        ("temp=-1", "temperature cannot be", "0"),
    ],
)
def test_arms_that_do_not_parse(text, says, hint):
    with pytest.raises(UsageError, match=says) as caught:
        make_arms(BASE, [text], [])
    assert hint in caught.value.hint


# --- the measurement ---


def test_the_result_says_all_there_is():
    result = measured(*PROMPTS, "--vs", "k=1", "--repeat", 3)
    assert [arm["name"] for arm in result["arms"]] == [ALONE, "k=3", "k=1"]
    assert len(result["trials"]) == 3 * 2 * 3
    assert result["partial"] is False
    assert result["noise"][ALONE] >= 0
    assert result["exactness"]["k=3"] == {"identical": 6, "rounding": 0, "wrong": 0, "not classified": 0}
    assert result["models"]["target"]["parameters"] > result["models"]["draft"]["parameters"]
    assert result["machine"]["devices"] and result["versions"]["llama-cpp-python"]
    for summary in result["summaries"]:
        speeds = sorted(t["tokens_per_s"] for t in result["trials"] if t["arm"] == summary["arm"])
        assert speeds[0] <= summary["tokens_per_s"] <= speeds[-1]
    assert "1" in result["costs"]["verify"] and "4" in result["costs"]["verify"]
    assert all(result["verdicts"][arm] for arm in ("k=3", "k=1"))


def test_rounds_alternate_their_order():
    order = [trial["arm"] for trial in measured(*PROMPTS)["trials"]]
    assert order == [ALONE, "k=3", "k=3", ALONE, "k=3", ALONE, ALONE, "k=3"]


def test_every_answer_starts_afresh():
    trials = measured(PROMPTS[0], "--repeat", 4)["trials"]
    assert len({tuple(trial["tokens"]) for trial in trials}) == 1
    assert {trial["prompt_tokens"] for trial in trials} == {trials[0]["prompt_tokens"]}


def test_match_with_a_seed_must_give_the_same_text_and_rejection_need_not():
    result = measured(*PROMPTS, "--temp", 0.8, "--accept", "rejection", "--vs", "accept=match")
    assert set(result["exactness"]) == {"accept=match"}
    assert result["exactness"]["accept=match"]["wrong"] == 0


def flips_a_token(draft, logits, sampler, rng):
    """A bug as one might plant it: after a whole accepted draft the bonus token is the second best."""
    verdict = accept.match(draft, logits, sampler, rng)
    if verdict.kind == "bonus":
        return replace(verdict, token=int(logits[verdict.accepted].argsort()[-2]))
    return verdict


def test_a_planted_bug_is_reported_as_wrong_with_its_position(monkeypatch):
    monkeypatch.setitem(rules.RULES, "rejection", flips_a_token)
    done = compare("-n", 24, "--json", "--vs", "accept=match", *PROMPTS)
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    wrong = [found for found in result["divergences"] if found["kind"] == "wrong"]
    assert {found["arm"] for found in wrong} == {"k=3"}
    assert result["exactness"]["accept=match"]["wrong"] == 0
    position = wrong[0]["position"]
    tokens = {t["arm"]: t["tokens"] for t in reversed(result["trials"]) if t["prompt"] == wrong[0]["prompt"]}
    assert tokens["k=3"][:position] == tokens[ALONE][:position]
    assert tokens["k=3"][position] != tokens[ALONE][position]
    assert "computed again" in wrong[0]["bug"]
    assert f"at token {position}" in done.stderr
    assert "bug in specdec" in done.stderr


def test_prompts_longer_than_the_context_are_skipped_and_counted():
    result = measured(PROMPTS[0], "x = 1\n" * 400)
    assert result["skipped"] == ["2"]
    assert "skipped, too long for the context: 1 prompt" in comparison.markdown(result)


def test_a_suite_by_category():
    result = measured("--prompts", "python", "--per-category", 1)
    categories = {summary["category"] for summary in result["summaries"]}
    assert "all" in categories and len(categories) > 3


def test_prompts_from_a_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "def f(x):", "category": "a"}\n{"prompt": "import", "category": "b"}\n')
    assert {t["category"] for t in measured("--prompts", path)["trials"]} == {"a", "b"}
    assert {t["category"] for t in measured("--prompts", path, "--category", "b")["trials"]} == {"b"}


# --- what it looks like ---


def test_the_table_and_the_verdict():
    done = compare("-n", 24, *PROMPTS)
    assert done.exit_code == 0
    assert "target alone" in done.stdout and "k=3" in done.stdout
    assert "4 identical" in done.stdout
    assert "2 prompts are too few to claim anything" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "1 prompt is too few to claim" in " ".join(compare("-n", 8, "--limit", 1, *PROMPTS).stdout.split())


def test_markdown_tables_are_well_formed():
    lines = compare("-n", 24, "--md", *PROMPTS).stdout.splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert tables and {line.count("|") for line in tables} == {10, 5}


def test_results_are_kept_and_compared_with():
    assert compare("-n", 24, *PROMPTS, "--save", "first").exit_code == 0
    assert results.path_of("first").exists()
    done = compare("-n", 24, *PROMPTS, "--against", "first")
    assert done.exit_code == 0
    assert "then" in done.stdout and "not paired" in done.stdout
    assert "target alone" in done.stdout.split("not paired")[1]
    other = compare("-n", 24, "import os", "--against", results.path_of("first"))
    assert "no arm and prompt in common" in other.stdout
    other = compare("-n", 24, *PROMPTS, "--temp", 0.5, "--against", "first")  # the same names, another sampling
    assert "no arm and prompt in common" in other.stdout
    swapped = ("-m", DEMO / "draft.gguf", "-md", DEMO / "target.gguf", "-n", 24)
    other = compare(*swapped, *PROMPTS, "--against", "first")
    assert "of other models" in other.stdout and "now / then" not in other.stdout
    assert "the draft is larger than the target" in " ".join(other.stdout.split())
    assert "first  20" in compare("--list").stdout
    (kept,) = json.loads(compare("--list", "--json").stdout)
    assert kept["name"] == "first" and kept["when"].startswith("20")


def test_answers_are_said_to_be_the_targets_own_also_where_nothing_was_drafted():
    done = CliRunner().invoke(app, ["compare", "-n", "2", "--drafter", "ngram", "--md", "A quite new text"])
    assert done.exit_code == 0 and "| ngram, k=auto |  | " in done.stdout and "| 2 identical |" in done.stdout


def test_what_is_too_little_to_claim_anything_is_not_kept_for_the_list():
    assert compare("-n", 8, "--limit", 1, *PROMPTS).exit_code == 0
    assert "speedup" not in json.dumps(json.loads(CliRunner().invoke(app, ["ls", "--json", "--here"]).stdout))


def test_a_prompt_is_matched_by_its_text_not_its_number():
    first, second = (comparison._speeds(measured(prompt), ALONE) for prompt in PROMPTS)
    assert list(first) == [PROMPTS[0]] and list(second) == [PROMPTS[1]]


def test_an_interrupt_while_answers_are_compared(monkeypatch):
    def interrupted(*answers):
        raise Interrupted

    monkeypatch.setitem(rules.RULES, "rejection", flips_a_token)
    monkeypatch.setattr(Session, "divergence", interrupted)
    result = json.loads(compare("-n", 24, "--json", *PROMPTS).stdout)
    assert len(result["trials"]) == 8
    assert result["exactness"]["k=3"]["not classified"] > 0
    assert "different, not classified" in comparison.markdown(result)


def test_a_trial_that_fails_keeps_those_before_it(monkeypatch):
    verify, calls = LlamaTarget.verify, iter(range(10**6))

    def fail(self, pending, draft):
        if next(calls) > 100:
            raise SpecdecError("the GPU fell off", "Push it back in.")
        return verify(self, pending, draft)

    monkeypatch.setattr(LlamaTarget, "verify", fail)
    done = compare("-n", 24, "--json", *PROMPTS)
    result = json.loads(done.stdout)
    assert done.exit_code == 1 and "the GPU fell off" in done.stderr
    assert result["partial"] and result["trials"] and "the GPU fell off" in result["notes"]


def test_a_full_disk_costs_the_file_and_not_the_result():
    done = compare("-n", 24, *PROMPTS, "--html", "/dev/full")
    assert done.exit_code == 1
    assert "k=3" in done.stdout and "No space left" in done.stderr


def test_a_drafter_that_fails_midway_is_named(monkeypatch):
    def fail(self, context, budget, policy):
        raise ValueError("out of ideas")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    result = measured(*PROMPTS)
    assert [note for note in result["notes"] if "in 4 of 4 answers" in note and "out of ideas" in note]


def test_penalties_are_part_of_the_margin():
    result = measured(*PROMPTS, "--repeat-penalty", 1.3)
    assert result["exactness"]["k=3"]["wrong"] == 0


def test_an_interrupt_keeps_what_was_measured(tmp_path):
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "specdec_cli", "compare", "-k", "3", "--prompts", "python", "--repeat", "200"]
    out = ""
    for wait in (3, 9, 27):  # a busy machine may have measured nothing yet
        process = subprocess.Popen(
            [*command, "--json", "--save", "cut"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in errors
        if out:
            break
        assert "before anything was measured" in errors
    result = json.loads(out)
    assert result["partial"] is True and result["trials"]
    assert result["exactness"]["k=3"]["identical"] > 0 and result["divergences"] == []
    assert "PARTIAL" in comparison.markdown(result)
    assert json.loads((tmp_path / "data/specdec/comparisons/cut.json").read_text()) == result


# --- what is refused ---


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--prompts", "pyhton"], 2, "pyhton"),
        (["--category", "functoins"], 2, "functoins"),
        (["--limit", "0"], 2, "limit"),
        (["--repeat", "0"], 2, "repeat cannot be 0"),
        (["--json", "--md"], 2, "both want the output"),
        (["x", "--prompts", "python"], 2, "and a suite too"),
        ([" "], 2, "a prompt is empty"),
        (["--vs", "k4"], 2, "does not parse"),
        (["--html", "/dev/null/page.html"], 2, "cannot write"),
        (["--save", "../up"], 2, "cannot be a result's name"),
        (["--save", "x.json"], 2, "cannot be a result's name"),
        (["--against", "x", "--md"], 2, "--against is a table"),
        (["--sweep", "k"], 2, "the sweep 'k' does not parse"),
        (["--against", "nobody"], 2, "no kept result"),
        (["x = 1\n" * 400], 1, "too long for a context"),
    ],
)
def test_bad_input(args, code, says):
    done = compare(*args)
    assert done.exit_code == code, done.stderr
    what, *to_do = done.stderr.splitlines()
    assert what.startswith("specdec: ") and says in what
    assert len(to_do) == 1 and to_do[0].startswith("  ")


def test_an_empty_or_malformed_suite(tmp_path):
    empty, broken = tmp_path / "empty.txt", tmp_path / "broken.jsonl"
    empty.write_text("\n\n")
    broken.write_text('{"prompt": "a"}\n{"prompt": \n')
    assert compare("--prompts", empty).exit_code == 2
    done = compare("--prompts", broken)
    assert done.exit_code == 2 and "line 2" in done.stderr


def test_a_file_that_is_no_result(tmp_path):
    path = tmp_path / "x.json"
    for text in ("[]", "{", '{"format": 2}', '{"format": 1, "trials": [{}]}'):
        path.write_text(text)
        done = compare("x = ", "--against", path)
        assert done.exit_code == 2, text
