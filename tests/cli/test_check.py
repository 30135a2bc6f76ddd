"""`specdec check`: two models compared by their headers, wherever they are, and what that says of the pair."""

from __future__ import annotations

import ggufs
import pytest
from driver import DRAFT, TARGET, assert_refused, call, told
from hub_pairs import BIG, SMALL, WINDOW, own_profile, pull_here, with_other_tokenizer, with_other_words

from specdec_cli.gguf.reader import read_header

HUB_PAIR = (f"{BIG}:Q4_K_M", f"{SMALL}:Q8_0")


@pytest.fixture
def hub(hub, inside):
    return hub


def check(*args):
    return call("check", *args)


def found(*args):
    return told("check", *args)


def printed(*args, code=0) -> str:
    """What is on the screen, without the breaks of its lines."""
    done = check(*args)
    assert (done.exit_code, done.stderr) == (code, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    return " ".join(done.stdout.split())


# --- files here ---


def test_the_first_differing_token_is_told_whatever_else_differs(tmp_path):
    """A pair of two families differs in its pre-tokenizer too, which says less."""
    size = len("gpt-2")
    other = ggufs.with_value(with_other_words(tmp_path), tmp_path / "d.gguf", "tokenizer.ggml.pre", b"qwen2"[:size])
    text = printed(TARGET, other)
    assert "translatable" in text and "100% of the draft's tokens exist in the target too" in text
    assert "token 300 is '" in text and "'~" in text and "1 of 4,096 differ" in text


def test_a_token_that_a_terminal_would_obey(tmp_path):
    """ESC [ 2 J would clear the screen."""
    size = len(read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values[300])
    other = ggufs.with_token(DRAFT, tmp_path / "d.gguf", 300, b"\x1b[2J"[:size].ljust(size))
    done = check(TARGET, other)
    assert done.exit_code == 0 and "\x1b" not in done.stdout and "token 300" in done.stdout
    assert "\x1b" not in check(TARGET, other, "--json").stdout


# --- profiles ---


def test_profiles_and_files_mixed():
    assert found("demo")["verdict"] == "identical" and "with -c 512, buffers included" in printed("demo", "-c", 512)
    assert found("demo")["draft"]["path"] == str(DRAFT)
    assert found("demo", TARGET)["draft"]["path"] == str(TARGET)
    assert found(TARGET, "demo")["draft"]["path"] == str(DRAFT)
    folder = own_profile("mine", f"target: {TARGET}\ndraft: small.gguf\n")
    (folder / "small.gguf").write_bytes(DRAFT.read_bytes())
    assert found("mine")["draft"]["path"] == str(folder / "small.gguf")
    assert found("mine", "demo")["draft"]["path"] == str(DRAFT)


def test_models_by_options_as_in_run():
    expected = found(TARGET, DRAFT)
    for args in (
        ("-m", TARGET, "-md", DRAFT),
        ("-m", TARGET, DRAFT),
        ("-md", DRAFT, TARGET),
        ("-p", "demo"),
        ("-p", "demo", "-md", DRAFT),
        ("-p", "demo", "-m", TARGET),
    ):
        assert found(*args)["draft"]["path"] == str(DRAFT) and found(*args)["verdict"] == expected["verdict"]
    assert_refused(check(), 2, "no model to check", "-m TARGET -md DRAFT")
    assert_refused(check("-p", "demo", "demo", "-md", DRAFT), 2, "too many models")


# --- what cannot be read ---


def test_what_is_no_model(tmp_path):
    assert_refused(check(TARGET), 2, "draft")  # not compared with itself, which would be identical
    own_profile("alone", f"target: {TARGET}\n")
    assert_refused(check("alone"), 2, "alone has no draft", "Name one")
    assert found("alone", DRAFT)["verdict"] == "identical"
    for name in ("demmo", "a/b/c"):
        assert_refused(check(name, DRAFT), 2, repr(name), "profile")
        assert_refused(check(TARGET, name), 2, repr(name))
    assert_refused(check("/", DRAFT), 2)
    assert_refused(check(tmp_path / "absent.gguf", DRAFT), 2, "there is no file", "absent.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    assert_refused(check(TARGET, tmp_path / "text.gguf", "--json"), 1, "not a GGUF file")


# --- the Hub ---


def test_models_of_the_hub_cost_their_headers(hub, tmp_path):
    result = found(*HUB_PAIR)
    assert result["verdict"] == "identical"
    assert [result[role]["path"] for role in ("target", "draft")] == [None, None]
    assert hub.served <= 2 * WINDOW
    assert not list(tmp_path.rglob("*.gguf"))  # nothing is kept
    own_profile("mine", f"target: {HUB_PAIR[0]}\ndraft: {DRAFT}\n")
    result = found("mine")
    assert result["target"]["remote"] and result["draft"]["path"] == str(DRAFT)
    text = printed(HUB_PAIR[0], with_other_tokenizer(tmp_path), code=3)
    assert "on the Hub on this machine" in text and "token 300" in text


def test_what_was_pulled_is_read_from_the_disk(hub):
    assert pull_here("--target", HUB_PAIR[0], "--draft", HUB_PAIR[1]).exit_code == 0
    hub.reset()
    result = found(*HUB_PAIR)
    assert hub.requests == [] and result["verdict"] == "identical"
    assert all("snapshots" in result[role]["path"] for role in ("target", "draft"))


def test_models_that_cannot_be_reached(hub):
    assert_refused(check("org/absent:Q8_0", DRAFT), 4, "no repository org/absent")
    assert_refused(check(f"{BIG}:Q2_K", DRAFT), 4, "Q2_K", f"{BIG}:Q4_K_M")
    hub.add("org/gated", {"m-Q8_0.gguf": TARGET}, gated=True)
    assert_refused(check(TARGET, "org/gated:Q8_0"), 4, "gated", "HF_TOKEN", f"{hub.endpoint}/org/gated")
    hub.close()
    assert_refused(check(*HUB_PAIR, "--json"), 4, f"cannot reach {hub.endpoint}", "network")
    assert hub.served == 0
