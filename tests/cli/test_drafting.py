"""How to draft, said on the command line: `--tree`, `--lookahead`, `-mds`, `--accept typical`, and drafts with a part
of their target's tokens. What is run, what is called lossy, and what is refused.
"""

from contextlib import closing

import ggufs
import pytest
import tiny
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, run, succeeded, told
from engines import open_session
from fakes import tokens_of
from hub_pairs import with_other_words

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.slots import Slots
from specdec_cli.gguf import memory
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import host, library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.measure.traces import read_trace
from specdec_cli.settings.options import SamplingParams

ALONE = ("-m", TARGET)
PAIR = (*ALONE, "-md", DRAFT)
THREE = (*ALONE, "-md", TARGET, "-mds", DRAFT)


LOOKAHEAD = (*ALONE, "--drafter", "lookahead", "--lookahead")


def answer(*args):
    return told("run", *args, "-n", 40, PROMPT)


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
    versus = [word for way in ways for word in ("--vs", way)]
    found = told("compare", "-n", 24, *PAIR, *windows, "--repeat", 1, *versus, PROMPT)
    variants = {variant["name"]: variant["settings"]["lookahead"] for variant in found["variants"]}
    assert set(ways) < set(variants) and (variants[ways[1]], variants[ways[2]]) == ("7:4:7", "5:3:5")
    for name, kinds in found["exactness"].items():
        assert kinds["wrong"] == 0 and kinds["identical"] >= 1, name
    trials = {trial["variant"]: trial for trial in found["trials"]}
    assert all(trials[way]["drafted"] for way in ways) and found["notes"] == []
    longest = {way: max(map(int, trials[way]["row_costs"])) - 1 for way in ways}
    assert longest[ways[2]] <= 19 and 20 <= longest[ways[1]] <= 41


def test_a_small_model_that_cannot_be_had(tmp_path):
    def refused(small, code, *says):
        assert_refused(run(*PAIR, "-mds", small, "--drafter", "small>model", PROMPT), code, *says)

    assert_refused(run(*PAIR, "--drafter", "ngram+small>model", PROMPT), 2, "no second draft model", "-mds")
    refused(tmp_path / "missing.gguf", 2, "missing.gguf")
    refused("someone/small-GGUF:Q4_K_M", 4, "someone/small-GGUF:Q4_K_M", "specdec pull")
    refused(with_other_words(tmp_path), 3, "token 300", "~~")


@pytest.mark.parametrize(
    ("command", "option", "value", "drafter", "says"),
    [
        ("run", "-mds", "nothing.gguf", "model", "--draft-small is for drafters with a second draft model"),
        ("run", "--lookahead", "4:3:4", "ngram+model", "--lookahead is for the drafter lookahead"),
        ("compare", "--tree", "4", "lookahead", "--tree is for drafters with a draft model"),
        ("run", "--lora-draft", "nothing.gguf", "ngram", "--lora-draft is for drafters with a draft model"),
        ("run", "--lora-draft", "nothing.gguf", "mtp", "--lora-draft is for drafters with a draft model"),
        ("run", "--draft-window", "64", "mtp", "--draft-window is for drafters with a draft model"),
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


# --- trees ---


def test_chains_and_trees_in_one_answer(tmp_path):
    """ngram drafts chains, the model trees, over the same caches."""
    trace = tmp_path / "run.jsonl"
    prompt = "def merge(left, right):\n    result = []\n    while"
    both = ("--drafter", "ngram+model", "--tree", 4, "-k", 6)
    other = told("run", prompt, "-n", 60, *both, "--trace", trace, "--baseline")["baseline"]["first_divergence"]
    assert other is None or other["kind"] == "rounding"
    *events, done = read_trace(trace)[1]
    assert done.notes == ()
    steps = [event for event in events if isinstance(event, Step) and event.drafted]
    assert all((event.parents is not None) == (event.source == "model") for event in steps)
    assert {event.source for event in steps} == {"ngram", "model"}


@pytest.mark.parametrize(("target", "draft"), [("mamba", "llama"), ("llama", "mamba")])
def test_a_recurrent_memory(tmp_path, target, draft):
    big, small = (tiny.write(tmp_path / name, kind) for name, kind in (("big.gguf", target), ("small.gguf", draft)))
    asked = (PROMPT, "-m", big, "-md", small, "-n", 8, "-k", 3)
    name = "big.gguf" if target != "llama" else "small.gguf"
    refused = f"--tree 3 cannot be used with {name}"
    assert_refused(run(*asked, "--tree", 3), 2, refused, "recurrent", "without --tree")
    assert run(*asked).exit_code == 0


# --- typical ---

TYPICAL = (*PAIR, "-k", 4, "-n", 24, "--accept", "typical")
HOT = ("--temp", 1.0, "-s", 5)


def asked(command, *args):
    return succeeded(command, *args, COLUMNS="200")


def typical(*args):
    return told("run", *TYPICAL, *args, PROMPT)


def test_an_answer_its_report_and_its_recording_say_that_it_is_lossy_and_by_how_much(tmp_path):
    path = tmp_path / "run.jsonl"
    text = asked("run", *TYPICAL, *HOT, "--baseline", PROMPT).stderr
    assert "accept=typical (lossy)" in text and "LOSSY" in text and "total variation" in text
    assert "LOSSY: not the target's distribution" in text and "same distribution" not in text
    found = typical(*HOT, "--trace", path)
    distance = found["stats"]["distance_per_token"]
    assert found["lossless"] is False and 0 < distance < 1
    again = asked("replay", path)
    assert again.stdout.rstrip("\n") == found["text"].rstrip("\n")
    assert f"{distance:.3f}" in again.stderr and "LOSSY" in again.stderr and "typical (lossy)" in again.stderr
    settings, events = read_trace(path)
    assert settings["accept"] == "typical"
    total = sum(getattr(event, "distance", None) or 0 for event in events)
    assert total == pytest.approx(distance * found["completion_tokens"])


def test_what_is_exact_is_not_called_lossy(tmp_path):
    """The rule at temperature 0, and the target alone."""
    path = tmp_path / "run.jsonl"
    greedy, own = typical("--trace", path), typical("--drafter", "none")
    assert greedy["tokens"] == own["tokens"] and greedy["stats"]["accepted"] > 0
    sampled = typical(*HOT, "--drafter", "none")
    assert sampled["tokens"] == typical(*HOT, "--drafter", "none", "--accept", "match")["tokens"]
    for found in (greedy, sampled):
        assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    for flags in ((), (*HOT, "--drafter", "none")):
        assert "lossy" not in asked("run", *TYPICAL, *flags, PROMPT).stderr.lower()
    compared = asked("compare", *TYPICAL, PROMPT).stdout
    assert "lossy" not in compared.lower() and "identical" in compared
    assert "lossy" not in asked("replay", path).stderr.lower() and "distance" not in path.read_text()


# --- a draft with a part of its target's tokens ---

TEXT = "the rest of the lot"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reduced")
    target = tiny.write(folder / "target.gguf", "llama")
    return target, tiny.write_reduced(folder / "draft.gguf")


WAYS = {
    "a chain": ("-k", 4),
    "auto": (),
    "a tree": ("-k", 8, "--tree", 3),
    "after ngram": ("--drafter", "ngram+model", "-k", 4),
    "sped up": ("--drafter", "model<ngram", "-k", 4),
    "a short memory": ("-k", 4, "--draft-window", 64),
    "bit for bit": ("-k", 4, "--bitwise"),
}


def test_the_answer_is_the_targets_own(files):
    asked = ("run", TEXT, "--raw", "-n", 60, "-m", files[0], "-md", files[1])
    own = told(*asked, "--drafter", "none")
    for way, flags in WAYS.items():
        found = told(*asked, *flags)
        assert found["tokens"] == own["tokens"] and not any("draft" in note for note in found["notes"]), way
        assert way == "auto" or found["stats"]["accepted"] > 5


def test_slots_draft_with_it(files):
    with open_session(target=str(files[0]), draft=str(files[1]), draft_tokens=4) as session:
        prompt = session.tokenize(TEXT, raw=True)
        own = tokens_of(session.events(prompt, 0, settings=session.settings.alone()))
    opened = open_session(target=str(files[0]), draft=str(files[1]), draft_tokens=4)
    with (
        opened as session,
        closing(Slots(session.weights, 2, 256, SharedLoad(), Interrupt(), accept="rejection")) as slots,
    ):
        events = list(slots.sessions[1].events(prompt, 0))
        assert slots.sessions[1].settings_of(SamplingParams(seed=1), None).accept == "rejection", "it was named"
    assert tokens_of(events) == own and Metrics.of(events).accepted > 5


def test_alone_it_is_refused(files, tmp_path):
    draft = files[1]
    for args in (("run", TEXT, "-m", draft, "--drafter", "none"), ("run", TEXT, "-m", draft, "-md", draft)):
        assert_refused(call(*args), 1, "draft.gguf is a draft with a part of its target's tokens", "-md")
    copied = call("draft", "quantize", "-m", draft, "--type", "Q8_0", "-o", tmp_path / "q.gguf")
    assert_refused(copied, 1, "a part of its target's tokens")
    assert call("check", draft, draft).exit_code == 3


def test_another_target_is_refused(files, tmp_path):
    other = ggufs.with_token(files[0], tmp_path / "other.gguf", 299, b"zz")
    for args in (("-k", 4), ("--drafter", "ngram+model"), ("--tree", 3)):
        refused = run(TEXT, "-m", other, "-md", files[1], *args)
        assert_refused(refused, 3, "draft.gguf was made for another target", "same model family")
    done = call("check", other, files[1])
    assert done.exit_code == 3 and "made for another target" in " ".join(done.stdout.split())


def test_a_damaged_one_is_refused(files, tmp_path):
    twice = tiny.write_reduced(tmp_path / "d.gguf", ids=[*range(100), 5])
    assert_refused(run(TEXT, "-m", files[0], "-md", twice), 3, "names a token twice")
