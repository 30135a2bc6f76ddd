"""`specdec check`, `ls`, `show` and `rm`: what fits together, what is there and known of it, what is taken away."""

from __future__ import annotations

import json
from functools import partial
from signal import SIGINT

import ggufs
import hub_pairs
import pytest
from driver import DRAFT, TARGET, assert_refused, call, succeeded, told
from gguf_models import Model
from hub_pairs import NAME, PAIR, SIZES, SMALL_FILE, environment, files, own_profile, pull_here, records
from terminal import Terminal

from specdec_cli.gguf.reader import read_header
from specdec_cli.pairs import profiles, speeds


@pytest.fixture
def hub(hub, inside):
    return hub


@pytest.fixture
def pulled(hub):
    """The bundled pair has been pulled in this process."""
    assert pull_here(*PAIR).exit_code == 0


def shown(*args) -> str:
    done = succeeded(*args)
    assert done.stderr == ""
    return done.stdout


def row(name: str, *args):
    (found,) = (row for row in told("ls", *args)["pairs"] if row["name"] == name)
    return found


# --- check ---


def check(*args):
    return call("check", *args)


def test_a_token_that_a_terminal_would_obey(tmp_path):
    """ESC [ 2 J would clear the screen."""
    size = len(read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values[300])
    other = ggufs.with_token(DRAFT, tmp_path / "d.gguf", 300, b"\x1b[2J"[:size].ljust(size))
    done = check(TARGET, other)
    assert done.exit_code == 0 and "\x1b" not in done.stdout and "token 300" in done.stdout
    assert "\x1b" not in check(TARGET, other, "--json").stdout


def test_files_profiles_and_options_as_in_run():
    folder = own_profile("mine", f"target: {TARGET}\ndraft: small.gguf\n")
    (folder / "small.gguf").write_bytes(DRAFT.read_bytes())
    for args, draft in (
        ((TARGET, DRAFT), DRAFT),
        (("demo",), DRAFT),
        (("demo", TARGET), TARGET),
        (("mine",), folder / "small.gguf"),
        (("-m", TARGET, "-md", DRAFT), DRAFT),
        (("-md", DRAFT, TARGET), DRAFT),
        (("-p", "demo", "-m", TARGET), DRAFT),
        (("-p", "demo", TARGET), DRAFT),
    ):
        result = told("check", *args)
        assert (result["draft"]["path"], result["verdict"]) == (str(draft), "identical")
    assert_refused(check(), 2, "no model to check", "-m TARGET -md DRAFT")
    assert_refused(check("-p", "demo", "demo", "-md", DRAFT), 2, "too many models")


def test_what_is_no_model(tmp_path):
    assert_refused(check(TARGET), 2, "draft")  # not compared with itself, which would be identical
    own_profile("alone", f"target: {TARGET}\n")
    assert_refused(check("alone"), 2, "alone has no draft", "Name one")
    assert told("check", "alone", DRAFT)["verdict"] == "identical"
    assert_refused(check("demmo", DRAFT), 2, "'demmo'", "profile")
    assert_refused(check(TARGET, "a/b/c"), 2, "'a/b/c'")
    assert_refused(check("/", DRAFT), 2)
    assert_refused(check(tmp_path / "absent.gguf", DRAFT), 2, "there is no file", "absent.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    assert_refused(check(TARGET, tmp_path / "text.gguf", "--json"), 1, "not a GGUF file")


def test_what_run_refuses_is_incompatible(tmp_path):
    path, heads = tmp_path / "d.gguf", TARGET.with_name("eagle3.gguf")
    for source, key, kind, value, says in (
        (DRAFT, "llama.attention.causal", ggufs.BOOL, False, "d.gguf is not a causal language model"),
        (heads, "eagle3.target_hidden_size", ggufs.U32, 512, "d.gguf fits a hidden size of 512"),
        (heads, "tokenizer.ggml.bos_token_id", ggufs.U32, 1, "d.gguf needs the target's tokenizer: the BOS token is 0"),
    ):
        model = Model(source.read_bytes())
        model.set(key, kind, value)
        path.write_bytes(model.raw())
        done = check(TARGET, path, "--json")
        result = json.loads(done.stdout)
        assert (done.exit_code, done.stderr, result["verdict"]) == (3, "", "incompatible")
        assert result["reason"].startswith(says) and not result["advice"] and result["overlap"] is None
        assert_refused(call("pull", "--target", TARGET, "--draft", path), 1 if source == DRAFT else 3, says)
    says = "eagle3.gguf contains only heads"
    assert json.loads(check(heads, DRAFT, "--json").stdout)["reason"].startswith(says)
    for command in (("pull", "--target", heads), ("run", "-m", heads, "Hi")):
        assert_refused(call(*command), 1, says)


def test_models_of_the_hub_cost_their_headers(hub, tmp_path):
    result = told("check", *PAIR[1::2])
    assert result["verdict"] == "identical"
    assert [result[role]["path"] for role in ("target", "draft")] == [None, None]
    assert hub.served <= 2 * hub_pairs.WINDOW
    assert not list(tmp_path.rglob("*.gguf"))  # nothing is kept
    own_profile("mine", f"target: {PAIR[1]}\ndraft: {DRAFT}\n")
    result = told("check", "mine")
    assert result["target"]["remote"] and result["draft"]["path"] == str(DRAFT)
    done = check(PAIR[1], hub_pairs.with_other_tokenizer(tmp_path))
    assert (done.exit_code, done.stderr) == (3, "") and "token 300" in done.stdout
    assert_refused(check("org/absent:Q8_0", DRAFT), 4, "no repository org/absent")


def test_what_was_pulled_is_read_from_the_disk(hub, pulled):
    hub.reset()
    result = told("check", *PAIR[1::2])
    assert hub.requests == [] and result["verdict"] == "identical"
    assert all("snapshots" in result[role]["path"] for role in ("target", "draft"))


# --- ls ---


def test_every_pair_has_a_line():
    lines = succeeded("ls", COLUMNS="80").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-3]] == [pair["name"] for pair in told("ls")["pairs"]]
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    assert all(profiles.load(name).description in words for name in profiles.names()), "nothing is cut"
    demo, *rest = told("ls")["pairs"]
    assert (demo["name"], demo["here"], demo["size"]) == ("demo", "yes", sum(SIZES))
    assert {row["here"] for row in rest} == {"no"}
    order = [(row["fits_gb"], row["size"], row["name"]) for row in rest]
    assert order == sorted(order)  # the smallest machines first


def test_only_what_is_here(tmp_path):
    own_profile("mine", f"target: {TARGET}\ndraft: absent.gguf\n")
    own_profile("alone", f"target: {TARGET}\n")
    assert {found["name"] for found in told("ls", "--here")["pairs"]} == {"demo", "alone"}
    assert not (tmp_path / "hf").exists(), "no cache is made"
    assert (row("mine")["here"], row("mine")["size"]) == ("in part", None)
    assert row("alone")["size"] == SIZES[0]
    assert "qwen" not in shown("ls", "--here")


def test_a_broken_profile_is_noted_and_hides_no_other():
    unknown = f"target: {TARGET}\nsettings: {{temprature: 0}}\n"  # which show and run refuse
    for number, name in enumerate(("broken", "unknown", "demo"), 1):
        own_profile(name, unknown if name == "unknown" else "target: [1\n")
        result = told("ls")
        assert len(result["pairs"]) == len(profiles.names()) - number
        assert any(f"{name}.yaml" in note for note in result["notes"]) and "note: " in shown("ls")
    assert "demo.yaml" in shown("ls", "--here"), "nothing else is there"


def test_a_command_names_a_profile_with_a_space_as_a_shell_reads_it():
    own_profile("a 9", f"target: {TARGET}\n")
    assert "specdec run -p 'a 9'" in shown("show", "a 9")


def test_a_pipe_gets_each_pair_on_one_line_in_colour_too():
    words = " ".join(["long"] * 30)
    own_profile("mine", f"target: {TARGET}\ndescription: {words}\n")
    plain, coloured = (succeeded("ls", **colour).stdout for colour in ({}, {"FORCE_COLOR": "1"}))
    assert words in plain and words in coloured
    assert "\x1b[1m" in coloured and "\u241b" not in coloured


@pytest.mark.parametrize("target", ["x" * 5000, "~nobody-of-this-name/x.gguf"])
def test_a_profile_of_a_file_that_cannot_be_looked_for_hides_no_other(target):
    own_profile("odd", f"target: {target}\n")
    assert row("odd")["here"] == "no" and row("demo")["here"] == "yes"


# --- the last measured speedup ---


def test_a_comparison_leaves_its_speedup():
    prompts = ("def f(", "class A:", "import os", "x = [")
    summaries = told("compare", "-k", "3", "-n", "8", "--repeat", "2", *prompts)["summaries"]
    (summary,) = (found["speedup"] for found in summaries if found["category"] == "all" and found["speedup"])
    speed = row("demo")["speed"]
    assert (speed["speedup"], speed["settings"]) == (summary["mean"], "k=3")
    assert (speed["low"], speed["high"]) == (summary["low"], summary["high"]) != (None, None)


@pytest.fixture
def own_pair(tmp_path):
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    for path in (target, draft):
        path.write_bytes(b"x")
    own_profile("mine", f"target: {target}\ndraft: {draft}\n")
    return target, draft


@pytest.mark.parametrize(("low", "high", "claimed"), [(1.4, 1.6, True), (0.9, 1.6, False), (None, None, False)])
def test_a_ratio_is_shown_only_if_its_interval_excludes_one(own_pair, low, high, claimed):
    speeds.keep_speed(*own_pair, speeds.Speed(1.5, low, high, "k=2", "2026-01-01"), "")
    assert ("1.50x" in shown("ls")) == ("1.50x" in shown("show", "mine")) == claimed


def test_the_last_measurement_counts_and_survives_no_change_of_a_file(own_pair):
    target, draft = own_pair
    assert row("mine")["speed"] is None
    speeds.keep_speed(target, draft, speeds.Speed(1.5, 1.4, 1.6, "k=2", "2026-01-01"), "")
    speeds.keep_speed(target, draft, speeds.Speed(0.25, 0.2, 0.3, "k=3", "2026-01-02"), "")
    assert row("mine")["speed"] == {"speedup": 0.25, "low": 0.2, "high": 0.3, "settings": "k=3", "when": "2026-01-02"}
    assert "0.25x (0.20 to 0.30), k=3, 2026-01-02" in " ".join(shown("show", "mine").split())
    target.write_bytes(b"another model")
    assert row("mine")["speed"] is None
    # What is damaged is none, and what cannot be kept is no error.
    speeds.keep_speed(target, draft, speeds.Speed(1.5, None, None, "k=3", "2026-01-01"), "")
    for path in (profiles.config_dir() / "tuned").glob("*.speed.json"):
        path.write_text('{"speedup": 1}')
    assert row("mine")["speed"] is None
    target.unlink()
    speeds.keep_speed(target, draft, speeds.Speed(1.5, None, None, "k=3", "2026-01-01"), "")


# --- rm ---


def test_a_pair_comes_and_goes(pulled, tmp_path):
    found = row(NAME)
    assert (found["here"], found["size"]) == ("yes", sum(SIZES)) and found["pulled"]
    assert told("rm", NAME, "--yes")["freed"] == sum(SIZES)
    assert files(tmp_path) == records(tmp_path) == [] and NAME not in profiles.names()
    assert not [path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    assert_refused(call("rm", NAME, "--yes"), 2, "no pair", "none yet")


def test_what_is_said_where_nobody_is_asked(pulled):
    def said(*args):
        done = succeeded(*args, COLUMNS="200")
        return " ".join(f"{done.stdout}{done.stderr}".split())

    said("rm", NAME, "--yes")
    pulled = said("pull", *PAIR, "--as", "one", "--yes")
    for part in ("download 10.7 MB", "identical", "apache-2.0", "one is ready", 'specdec run -p one "..."'):
        assert part in pulled
    assert "one was already here: nothing to download" in said("pull", "one")
    assert "download 0 B" in said("pull", "--target", PAIR[3], "--draft", PAIR[3], "--yes")
    assert all(part in said("show", "one") for part in (PAIR[1], PAIR[3], "yes, pulled 20", f"/{SMALL_FILE}"))
    assert said("rm", "one", "--yes") == "one was deleted: 9.6 MB freed. Kept for another pair: draft-Q8_0.gguf."
    gated = profiles.load("llama-3.3-70b")
    known = said("show", "llama-3.3-70b")
    assert all(part in known for part in (gated.target, gated.draft, gated.why, gated.licence, "specdec pull"))


def test_a_folder_that_is_not_readable_hides_no_other_pair(pulled, monkeypatch):
    def denied(name):
        raise PermissionError(13, "Permission denied", "models--org--x")

    monkeypatch.setattr("specdec_cli.pairs.pair_list._local_path", denied)
    assert "models--org--x: Permission denied" in " ".join(told("ls")["notes"])


def test_without_being_asked_nothing_goes(hub, pulled, tmp_path):
    for args in ((NAME,), (NAME, "--json")):
        assert_refused(call("rm", *args), 2, "--yes")
    with Terminal("rm", NAME, streams=("stdin",), env=environment(hub, tmp_path)) as terminal:
        assert terminal.ended() == 2, "nobody sees a question"
    assert records(tmp_path) == [NAME] and len(files(tmp_path)) == 2
    assert_refused(call("rm", NAME[:-1], "--yes"), 2, f"no pair {NAME[:-1]!r}", f"Did you mean {NAME!r}?")
    assert_refused(call("rm", "qwen3-8b", "--yes"), 2, "no pair", NAME)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"y\n", 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((b"\n", 1), (SIGINT, 130)))],
)
def test_on_a_terminal_it_asks(hub, pulled, tmp_path, answer, code):
    with Terminal("rm", NAME, env=environment(hub, tmp_path)) as terminal:
        question = terminal.read(until="]:")
        assert NAME in question and "10.7 MB" in question
        if code == 130:
            ended = terminal.interrupted_at_a_question(partial(terminal.process.send_signal, answer))
        else:
            ended = terminal.ended_by(answer, within=10)
    assert ended == code
    assert files(tmp_path) == ([] if code == 0 else ["draft-Q8_0.gguf", "target-Q4_K_M.gguf"])
