"""`--lookahead`, `-mds` and nested drafters on the command line: what is refused, with which words, and what is run."""

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, run, told
from hub_pairs import with_other_words

from specdec_cli.gguf import memory
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import host, library

ALONE = ("-m", TARGET)
PAIR = (*ALONE, "-md", DRAFT)
THREE = (*ALONE, "-md", TARGET, "-mds", DRAFT)


def answer(*args):
    return told("run", *args, "-n", 40, PROMPT)


def compared(*args):
    return told("compare", "-n", 24, *args, PROMPT)


LOOKAHEAD = (*ALONE, "--drafter", "lookahead", "--lookahead")


def test_a_senseless_window_is_refused_before_a_file_is_touched():
    for value in ("0:4:7", "7:1:7", "7:4", "7:4:x", ""):
        done = run("-m", "no-such-file.gguf", "--drafter", "ngram+lookahead", f"--lookahead={value}", PROMPT)
        assert_refused(done, 2, f"lookahead cannot be {value!r}", "W:N:G")


def test_the_window_must_fit_into_a_fixed_length():
    for k in (5, 19):
        assert_refused(run(*LOOKAHEAD, "7:4:7", "-k", k, PROMPT), 2, f"into {k} draft tokens", "-k 20", "auto")
    assert_refused(run(*LOOKAHEAD, "200:5:200", PROMPT), 2, "does not fit into one pass", "512", "256")
    found = answer(*LOOKAHEAD, "7:4:7", "-k", 20)
    assert found["stats"]["drafted"] > 0 and found["lookahead"] == "7:4:7"


def test_variants_that_need_contexts_of_different_kinds():
    ways = ("tree=4,k=12", "drafter=lookahead", "drafter=lookahead,lookahead=5:3:5", "drafter=model<ngram,k=6")
    windows = ("-k", 41, "--lookahead", "7:4:7")
    found = compared(*PAIR, *windows, "--repeat", 1, *(word for way in ways for word in ("--vs", way)))
    variants = {variant["name"]: variant["settings"]["lookahead"] for variant in found["variants"]}
    assert set(ways) < set(variants) and (variants[ways[1]], variants[ways[2]]) == ("7:4:7", "5:3:5")
    for name, kinds in found["exactness"].items():
        assert kinds["wrong"] == 0 and kinds["identical"] >= 1, name
    trials = {trial["variant"]: trial for trial in found["trials"]}
    assert all(trials[way]["drafted"] for way in ways) and found["notes"] == []
    longest = {way: max(map(int, trials[way]["row_costs"])) - 1 for way in ways}
    assert longest[ways[2]] <= 19 and 20 <= longest[ways[1]] <= 41


# --- a second draft model ---


def test_small_needs_its_model():
    assert_refused(run(*PAIR, "--drafter", "ngram+small>model", PROMPT), 2, "no second draft model", "-mds")


def test_a_small_model_that_cannot_be_had(tmp_path):
    def refused(small, code, *says):
        assert_refused(run(*PAIR, "-mds", small, "--drafter", "small>model", PROMPT), code, *says)

    refused(tmp_path / "missing.gguf", 2, "missing.gguf")
    refused("someone/small-GGUF:Q4_K_M", 4, "someone/small-GGUF:Q4_K_M", "specdec pull")
    refused(with_other_words(tmp_path), 3, "token 300", "~~")


@pytest.mark.parametrize(
    ("command", "option", "value", "drafter", "says"),
    [
        ("run", "-mds", "nothing.gguf", "model", "--draft-small is for drafters with a second draft model"),
        ("run", "--lookahead", "4:3:4", "ngram+model", "--lookahead is for the drafter lookahead"),
        ("compare", "--tree", "4", "lookahead", "--tree is for drafters with a draft model"),
    ],
)
def test_an_option_of_another_drafter_is_refused(command, option, value, drafter, says):
    assert_refused(call(command, *PAIR, "--drafter", drafter, option, value, PROMPT), 2, says, "Add --drafter")


def test_a_small_model_for_which_there_is_no_room_costs_its_help_alone(monkeypatch):
    """Its cache must fit beside that of the draft model, not instead of it."""
    caches = [memory.cache_bytes(read_header(path), 256) for path in (TARGET, TARGET, DRAFT)]
    monkeypatch.setattr(library, "supports_gpu", lambda: False)
    for lacking in (0, 1):
        monkeypatch.setattr(host, "available_memory", lambda lacking=lacking: sum(caches) - lacking)
        found = answer(*THREE, "--drafter", "small>model", "-k", 4)
        assert found["stats"]["accepted"] > 20
        assert ["the second draft model is not used" in note for note in found["notes"]] == [True] * lacking
