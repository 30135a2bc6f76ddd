"""What a user would trip over: small slips of the command line, each told instead of passed over."""

from __future__ import annotations

import json
import re

import hub_pairs
import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, piped, succeeded, told
from hub_pairs import BIG, FAR, NEAR, PAIR

from specdec_cli.llama import library

BRIEF = ("-n", 2, "-k", 3)


# --- the prompt ---


def test_an_argument_a_file_and_a_pipe_give_the_same_prompt(tmp_path):
    def understood(done):
        found = json.loads(done.stdout)
        return found["prompt_tokens"], found["tokens"]

    text, asked = b"\ndef f(x):\r\n\n", ("-n", 4, "--json")
    (tmp_path / "p.txt").write_bytes(text)
    said = understood(succeeded("run", "\ndef f(x):", *asked))
    assert understood(succeeded("run", "-f", tmp_path / "p.txt", *asked)) == said
    for dash in ((), ("-",), ("-f", "-")):
        assert understood(piped(text, "run", *dash, *asked)) == said
    assert_refused(piped(b"", "compare", "-"), 2, "the prompt is empty")


def test_an_answer_ends_at_a_line_break():
    found = told("run", "def f(x):\n    y = x\n    return", "-n", 40, "--stop", r"\n")
    assert found["finish_reason"] == "stop_string" and "\n" not in found["text"]


# --- options ---


@pytest.mark.parametrize(
    ("args", "means"),
    [
        (("run", "-fa", PROMPT), "-f a"),
        (("compare", "-mdx.gguf", PROMPT), "-md x.gguf"),
    ],
)
def test_letters_glued_to_a_short_option(args, means):
    glued = means.replace(" ", "")
    assert_refused(call(*args), 2, f"no option {glued}", means)


def test_numbers_values_and_long_short_options_are_no_slips():
    for flags in (["-n2", "-k3"], ["-ngl=0", "-td", 1, "-n", 2], ["--stop", "-cd", "-n2"], ["-qn2"]):
        assert succeeded("run", *flags, PROMPT, "-m", TARGET, "-md", DRAFT).stdout
    assert succeeded("run", "-n2", "--raw", "--", "-fa").stdout


def test_layers_for_a_gpu_that_there_is_not(monkeypatch):
    monkeypatch.setattr(library, "supports_gpu", lambda: False)
    (note,) = told("run", PROMPT, *BRIEF, "-ngl", 99, "-ngld", 5)["notes"]
    assert note.startswith("-ngl 99 and -ngld 5 do nothing: ")
    assert "-ngl" not in succeeded("run", PROMPT, *BRIEF, "-ngl", 0).stderr
    monkeypatch.setattr(library, "supports_gpu", lambda: True)
    assert "does nothing" not in succeeded("run", PROMPT, *BRIEF, "-ngl", 99).stderr


def test_what_is_not_there_is_a_usage_error():
    assert_refused(call("compare", "--against", "nobody", PROMPT), 2)
    assert_refused(call("draft", "prune", "-m", "none.gguf", "--keep-layers", 0, "-o", "out.gguf"), 2)


# --- what is told ---


def test_a_seed_is_told_where_it_gives_the_answer_again():
    common = ("run", PROMPT, "--temp", 1, *BRIEF)
    assert "seed" not in succeeded(*common).stderr
    drawn = succeeded(*common, "--accept", "match", "-n", 20)
    seed = re.findall("seed[= ]([0-9]+)", drawn.stderr)[0]  # a narrow line has "seed 7"
    assert succeeded(*common, "--accept", "match", "-n", 20, "-s", seed).stdout == drawn.stdout


# --- proposals ---


def test_proposals_that_are_not_on_the_hub_are_not_blamed_on_the_user(hub, inside, tmp_path):
    hub_pairs.publish_family(hub, BIG, tmp_path)
    for name in (NEAR, FAR, "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"):
        hub.repos.pop(name.partition(":")[0])
    found = hub_pairs.pulled_here(*PAIR[:2])
    (note,) = found["notes"]
    assert not found["proposals"] and "cannot be read" in note and "--draft" not in note


def test_a_target_beside_a_pair_takes_the_draft_of_the_pair_and_says_so():
    few = ("run", "-p", "demo", "-n", 2, "-t", 1, PROMPT)
    said = "note: -m replaces the target of demo; its draft stays: draft.gguf\n"
    assert succeeded(*few, "-m", TARGET).stderr.startswith(said)
    for more in (("-md", DRAFT), ("--drafter", "none"), ("-q",)):
        assert said not in succeeded(*few, "-m", TARGET, *more).stderr
