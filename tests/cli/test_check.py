"""`specdec check`: two models compared by their headers, wherever they are, and what that says of the pair."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ggufs
import pytest
from driver import DRAFT, TARGET, assert_refused, specdec
from hub_pairs import BIG, SMALL, WINDOW, environment, here, publish, pull_here, with_other_words
from hub_server import HubServer
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.models import profiles

HUB_PAIR = (f"{BIG}:Q4_K_M", f"{SMALL}:Q8_0")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with HubServer() as hub:
        here(monkeypatch, publish(hub), tmp_path)
        yield hub


def check(*args):
    return CliRunner().invoke(app, ["check", *map(str, args)])


def found(*args, code=0):
    done = check(*args, "--json")
    assert (done.exit_code, done.stderr, done.stdout.count("\n")) == (code, "", 1), done.stderr
    return json.loads(done.stdout)


def printed(*args, code=0) -> str:
    """What is on the screen, without the breaks of its lines."""
    done = check(*args)
    assert (done.exit_code, done.stderr) == (code, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    return " ".join(done.stdout.split())


def own_profile(name: str, text: str) -> Path:
    folder = profiles.config_dir() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder


# --- files here ---


def test_two_files():
    result = found(TARGET, DRAFT)
    assert (result["verdict"], result["reason"], result["llama_cpp_accepts"]) == ("identical", "", True)
    assert {check["outcome"] for check in result["checks"]} == {"same"}
    assert (result["n_shared"], result["n_differing"], result["notes"]) == (4096, 0, [])
    for role, path, params in (("target", TARGET, 8.9e6), ("draft", DRAFT, 0.9e6)):
        side = result[role]
        assert (side["name"], side["path"], side["remote"]) == (str(path), str(path), None)
        assert (side["quantisation"], side["n_ctx_train"], side["size"]) == ("Q8_0", 1024, path.stat().st_size)
        assert abs(side["n_params"] - params) < 0.1e6
    assert result["ratio"] == result["draft"]["n_params"] / result["target"]["n_params"]
    assert result["memory"]["needed"] == result["target"]["memory"] + result["draft"]["memory"]
    assert result["memory"]["fits"] in ("gpu", "both", "main", "none", "unknown")


def test_the_tables_say_it_all(monkeypatch):
    monkeypatch.chdir(TARGET.parent)
    text = printed(TARGET.name, DRAFT.name, "-c", "512")
    for part in (
        *("target.gguf", "draft.gguf", "on this machine", "Q8_0", "8.9 million", "0.9 million", "1,024", "9.6 MB"),
        *("tokenizer model", "pre-tokenizer", "token texts", "token types", "merges", "BOS token", "EOS token"),
        *("add_bos_token", "cache at -c 512", "with -c 512", "verdict identical", "memory", "opinion", "10%"),
    ):
        assert part in text, part
    assert "DIFFERENT" not in text and "llama.cpp itself" not in text


def test_memory_is_told_for_a_context():
    small, large, beyond = (found(TARGET, DRAFT, "-c", n) for n in (128, 1024, 8192))
    assert small["n_ctx"] == 128 and found(TARGET, DRAFT)["n_ctx"] == 4096
    assert large["target"]["cache"] == 8 * small["target"]["cache"]
    assert small["memory"]["needed"] < large["memory"]["needed"] == beyond["memory"]["needed"]


def test_other_words(tmp_path):
    other = with_other_words(tmp_path)
    result = found(TARGET, other, code=3)
    assert (result["verdict"], result["n_differing"], result["llama_cpp_accepts"]) == ("incompatible", 1, False)
    (different,) = (check for check in result["checks"] if check["outcome"] == "different")
    assert different["what"] == "token texts" and different["why"] == result["reason"]
    text = printed(TARGET, other, code=3)
    assert "verdict incompatible: token 300 is '" in text and "'~" in text and "(1 of 4,096 differ)" in text
    assert "DIFFERENT" in text and "llama.cpp itself" not in text


def test_the_first_differing_token_is_told_whatever_else_differs(tmp_path):
    """A pair of two families differs in its pre-tokenizer too, which says less."""
    size = len("gpt-2")
    other = ggufs.with_value(with_other_words(tmp_path), tmp_path / "d.gguf", "tokenizer.ggml.pre", b"qwen2"[:size])
    text = printed(TARGET, other, code=3)
    assert "token 300 is '" in text and "'~" in text and "1 of 4,096 differ" in text


def test_where_llama_cpp_is_less_strict_it_is_said(tmp_path):
    other = ggufs.with_value(DRAFT, tmp_path / "d.gguf", "tokenizer.ggml.pre", b"qwen2")
    assert found(TARGET, other, code=3)["llama_cpp_accepts"] is True
    text = printed(TARGET, other, code=3)
    assert "pre-tokenizer 'gpt-2' in the target, 'qwen2' in the draft" in text
    assert "llama.cpp itself would take this pair" in text


def test_a_token_that_a_terminal_would_obey(tmp_path):
    """ESC [ 2 J would clear the screen."""
    other = ggufs.with_token(DRAFT, tmp_path / "d.gguf", 300, b"\x1b[2J"[: len(word(300))].ljust(len(word(300))))
    done = check(TARGET, other)
    assert done.exit_code == 3 and "\x1b" not in done.stdout and "token 300" in done.stdout
    assert "\x1b" not in check(TARGET, other, "--json").stdout


def word(token: int) -> bytes:
    from specdec_cli.models.gguf import read_header

    return read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values[token]


def test_a_model_that_cannot_run_here_is_noted(tmp_path):
    encoder = ggufs.with_keys(DRAFT, tmp_path / "e.gguf", ggufs.key("llama.attention.causal", ggufs.BOOL, b"\0"))
    (note,) = found(TARGET, encoder)["notes"]
    assert "e.gguf does not generate text" in note
    assert "note: e.gguf does not generate text" in printed(TARGET, encoder)


def test_what_the_draft_costs_is_told():
    assert "will slow the target down" in printed(DRAFT, TARGET)
    assert found(DRAFT, TARGET)["ratio"] > 1


# --- profiles ---


def test_profiles_and_files_mixed():
    assert found("demo")["verdict"] == "identical"
    assert found("demo")["draft"]["path"] == str(DRAFT)
    assert found("demo", TARGET)["draft"]["path"] == str(TARGET)
    assert found(TARGET, "demo")["draft"]["path"] == str(DRAFT)
    folder = own_profile("mine", f"target: {TARGET}\ndraft: small.gguf\n")
    (folder / "small.gguf").write_bytes(DRAFT.read_bytes())
    assert found("mine")["draft"]["path"] == str(folder / "small.gguf")
    assert found("mine", "demo")["draft"]["path"] == str(DRAFT)


def test_a_profile_without_a_draft_needs_one_named():
    own_profile("mine", f"target: {TARGET}\n")
    assert_refused(check("mine"), 2, "mine has no draft", "Name one")
    assert found("mine", DRAFT)["verdict"] == "identical"


# --- what cannot be read ---


def test_a_model_alone_is_compared_with_nothing():
    """Not with itself, which would be found identical."""
    assert_refused(check(TARGET), 2, "draft")


@pytest.mark.parametrize("name", ["nothing", "no such/thing", "demmo", "a/b/c"])
def test_names_of_nothing(name):
    assert_refused(check(name, DRAFT), 4, repr(name), "profile")
    assert_refused(check(TARGET, name), 4, repr(name))


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_folders(name):
    result = check(name, DRAFT)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (1, 4) and result.stdout == "" and len(result.stderr.splitlines()) == 2


def test_files_that_are_none(tmp_path):
    assert_refused(check(tmp_path / "absent.gguf", DRAFT), 1, "there is no file", "absent.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is text")
    assert_refused(check(TARGET, tmp_path / "text.gguf"), 1, "not a GGUF file")
    (tmp_path / "cut.gguf").write_bytes(TARGET.read_bytes()[:10_000])
    assert_refused(check(tmp_path / "cut.gguf", DRAFT, "--json"), 1, "cut.gguf")


@pytest.mark.parametrize("args", [[], ["-c", "0", "a", "b"], ["-c", "x", "a", "b"], ["a", "b", "c"]])
def test_usage(args):
    result = check(*args)
    assert (result.exit_code, result.stdout) == (2, "")


# --- the Hub ---


def test_models_of_the_hub_cost_their_headers(hub, tmp_path):
    result = found(*HUB_PAIR)
    assert result["verdict"] == "identical"
    assert [result[role]["path"] for role in ("target", "draft")] == [None, None]
    remote = result["target"]["remote"]
    assert (remote["repo"], remote["licence"], remote["gated"]) == (BIG, "apache-2.0", False)
    assert [file["size"] for file in remote["files"]] == [result["target"]["size"]] == [TARGET.stat().st_size]
    assert hub.served <= 2 * WINDOW
    assert not list(tmp_path.rglob("*.gguf"))  # nothing is kept


def test_the_hub_with_files_and_profiles_mixed(hub, tmp_path):
    own_profile("mine", f"target: {HUB_PAIR[0]}\ndraft: {DRAFT}\n")
    result = found("mine")
    assert result["target"]["remote"] and result["draft"]["path"] == str(DRAFT)
    text = printed(HUB_PAIR[0], with_other_words(tmp_path), code=3)
    assert "on the Hub on this machine" in text and "token 300" in text
    assert hub.served <= 2 * WINDOW


def test_as_a_process(hub, tmp_path):
    done = specdec("check", *HUB_PAIR, "--json", env=environment(hub, tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == json.loads(done.stdout) | {"verdict": "identical", "n_differing": 0}


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


def test_a_file_of_the_hub_that_is_no_model(hub):
    hub.add("org/text", {"m-Q8_0.gguf": b"GGUF" + struct.pack("<I", 99) + b"x" * 100})
    assert_refused(check("org/text:Q8_0", DRAFT), 1, "version 99")
