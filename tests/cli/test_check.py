"""`specdec check`: two models compared by their headers, wherever they are, and what that says of the pair."""

from __future__ import annotations

import ggufs
import pytest
from driver import DRAFT, TARGET, assert_refused, call, told
from hub_pairs import BIG, SMALL, WINDOW, own_profile, pull_here, with_other_tokenizer

from specdec_cli.gguf.reader import read_header

HUB_PAIR = (f"{BIG}:Q4_K_M", f"{SMALL}:Q8_0")


@pytest.fixture
def hub(hub, inside):
    return hub


def check(*args):
    return call("check", *args)


def found(*args):
    return told("check", *args)


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
        (("mine", "demo"), DRAFT),
        (("-m", TARGET, "-md", DRAFT), DRAFT),
        (("-md", DRAFT, TARGET), DRAFT),
        (("-p", "demo", "-m", TARGET), DRAFT),
    ):
        result = found(*args)
        assert (result["draft"]["path"], result["verdict"]) == (str(draft), "identical")
    assert_refused(check(), 2, "no model to check", "-m TARGET -md DRAFT")
    assert_refused(check("-p", "demo", "demo", "-md", DRAFT), 2, "too many models")


def test_what_is_no_model(tmp_path):
    assert_refused(check(TARGET), 2, "draft")  # not compared with itself, which would be identical
    own_profile("alone", f"target: {TARGET}\n")
    assert_refused(check("alone"), 2, "alone has no draft", "Name one")
    assert found("alone", DRAFT)["verdict"] == "identical"
    assert_refused(check("demmo", DRAFT), 2, "'demmo'", "profile")
    assert_refused(check(TARGET, "a/b/c"), 2, "'a/b/c'")
    assert_refused(check("/", DRAFT), 2)
    assert_refused(check(tmp_path / "absent.gguf", DRAFT), 2, "there is no file", "absent.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    assert_refused(check(TARGET, tmp_path / "text.gguf", "--json"), 1, "not a GGUF file")


def test_models_of_the_hub_cost_their_headers(hub, tmp_path):
    result = found(*HUB_PAIR)
    assert result["verdict"] == "identical"
    assert [result[role]["path"] for role in ("target", "draft")] == [None, None]
    assert hub.served <= 2 * WINDOW
    assert not list(tmp_path.rglob("*.gguf"))  # nothing is kept
    own_profile("mine", f"target: {HUB_PAIR[0]}\ndraft: {DRAFT}\n")
    result = found("mine")
    assert result["target"]["remote"] and result["draft"]["path"] == str(DRAFT)
    done = check(HUB_PAIR[0], with_other_tokenizer(tmp_path))
    assert (done.exit_code, done.stderr) == (3, "") and "token 300" in done.stdout
    assert_refused(check("org/absent:Q8_0", DRAFT), 4, "no repository org/absent")


def test_what_was_pulled_is_read_from_the_disk(hub):
    assert pull_here("--target", HUB_PAIR[0], "--draft", HUB_PAIR[1]).exit_code == 0
    hub.reset()
    result = found(*HUB_PAIR)
    assert hub.requests == [] and result["verdict"] == "identical"
    assert all("snapshots" in result[role]["path"] for role in ("target", "draft"))
