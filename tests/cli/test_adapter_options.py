"""`--lora` and `--lora-draft`: where they may be said, what the records say of them, and what is refused."""

import json
import shutil
import signal
import subprocess

import ggufs
import loras
import pytest
import tiny
from driver import DRAFT, TARGET, assert_refused, call, configure, run, succeeded, told
from hub_pairs import own_profile

from specdec_cli import load
from specdec_cli.weights import model_loading

SHORT = ("run", "def median(values):\n    return", "-n", 24, "-k", 3)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return loras.write(tmp_path_factory.mktemp("lora") / "style.gguf", TARGET, strength=0.7)


@pytest.fixture(scope="module")
def of_draft(tmp_path_factory):
    return loras.write(tmp_path_factory.mktemp("lora") / "draft-style.gguf", DRAFT, strength=0.7)


def test_it_is_said_which_adapters_are_used(adapter, of_draft, tmp_path):
    plain = told(*SHORT)
    flags = ("--lora", f"{adapter}:0.9", "--lora", f"{adapter}:0", "--lora-draft", of_draft)
    answer = told(*SHORT, *flags, "--trace", tmp_path / "t.jsonl")
    assert (plain["lora"], plain["lora_draft"]) == ([], []) and answer["text"] != plain["text"]
    assert (answer["lora"], answer["lora_draft"]) == ([f"{adapter}:0.9"], [f"{of_draft}:1"])
    assert answer["text"] == told(*SHORT, "--lora", f"{adapter}:0.9", "--drafter", "none")["text"]
    shown = " ".join(succeeded(*SHORT, *flags).stderr.split())
    assert "lora=style.gguf:0.9, lora-draft=draft-style.gguf:1" in shown and str(adapter.parent) not in shown
    assert "lora=style.gguf:0.9" in " ".join(succeeded("replay", tmp_path / "t.jsonl").stderr.split())
    assert told(*SHORT, "--lora", f"{adapter}:0")["text"] == plain["text"]
    alone = told(*SHORT, "--lora", adapter, "--drafter", "ngram")
    assert alone["lora"] and alone["lora_draft"] == []


def test_every_layer_may_say_it(adapter, of_draft):
    expected = told(*SHORT, "--lora", f"{adapter}:0.9")
    shutil.copy(adapter, own_profile("mine", "") / "style.gguf")
    settings = "settings:\n  lora: style.gguf:0.9\n"
    own_profile("mine", f"target: {TARGET}\ndraft: {DRAFT}\n{settings}")
    found = told(*SHORT, "-p", "mine")
    assert found["text"] == expected["text"] and found["lora"][0].endswith("profiles/style.gguf:0.9")
    assert told(*SHORT, "-p", "mine", "--lora", f"{adapter}:0.1")["lora"] == [f"{adapter}:0.1"], "a flag comes first"
    variable = json.loads(call(*SHORT, "--json", SPECDEC_LORA=f"{adapter}:0.9").stdout)
    assert (variable["text"], variable["lora"]) == (expected["text"], [f"{adapter}:0.9"])
    two = json.loads(call(*SHORT, "--json", SPECDEC_LORA=f"{adapter}:0.5 {adapter}:0.4").stdout)
    assert two["lora"] == [f"{adapter}:0.5", f"{adapter}:0.4"]
    configure(f"lora: [{adapter}:0.9]\nlora_draft: {of_draft}\n")
    found = told(*SHORT)
    assert (found["text"], found["lora_draft"]) == (expected["text"], [f"{of_draft}:1"])
    configure("")
    with load(target=TARGET, draft=DRAFT, lora=f"{adapter}:0.9", lora_draft=[of_draft], threads=1) as engine:
        assert [str(each) for each in engine.pair.adapters] == [f"{adapter}:0.9"]
        assert [each.path for each in engine.pair.draft_adapters] == [of_draft]


@pytest.mark.parametrize("text", ["5", "[1]", "{}", "''", "['']"])
def test_a_settings_file_may_hold_anything(text):
    configure(f"lora: {text}\n")
    assert_refused(call(*SHORT), 2, "lora is", "Name GGUF adapters")


def test_what_is_refused(adapter, tmp_path):
    other = loras.write(tmp_path / "other.gguf", tiny.write(tmp_path / "m.gguf", "llama"))
    (tmp_path / "note.txt").write_text("no adapter")
    (tmp_path / "cut.gguf").write_bytes(adapter.read_bytes()[:-100])
    for text, code, says in (
        (tmp_path / "none.gguf", 2, "there is no file"),
        (f"{adapter}:much", 2, "is not a number: 'much'"),
        (f"{adapter}:nan", 2, "cannot be nan"),
        (f"{adapter}:-inf", 2, "cannot be -inf"),
        (tmp_path, 2, "is a folder"),
        (tmp_path / "note.txt", 1, "is not a GGUF file"),
        (tmp_path / "cut.gguf", 1, "is cut short"),
        (TARGET, 1, "target.gguf is a model, not an adapter"),
        (other, 1, "Name an adapter that was made for this model."),
    ):
        assert_refused(call(*SHORT, "--lora", text), code, says)
        assert_refused(call(*SHORT, "--lora-draft", text), code, says)
    assert_refused(run("x", "--drafter", "ngram", "--lora-draft", adapter), 2, "--lora-draft is for drafters with")


@pytest.fixture
def children(monkeypatch):
    monkeypatch.setattr(model_loading, "_known", {})
    started, start = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **rest: started.append(start(*args, **rest)) or started[-1])
    return started


def test_an_adapter_is_tried_once_with_its_model(tmp_path, children):
    """llama.cpp aborts on an alpha of 64 bits."""
    model = tiny.write(tmp_path / "m.gguf", "llama")
    plain = loras.write(tmp_path / "plain.gguf", model, keys={"adapter.lora.alpha": None})
    deadly = ggufs.with_keys(plain, tmp_path / "a.gguf", ggufs.scalar("adapter.lora.alpha", ggufs.F64, 4.0))
    flags = ("x", "-m", model, "--drafter", "none", "-n", 2, "--raw")
    for _ in range(2):
        assert_refused(run(*flags, "--lora", deadly), 1, "llama.cpp crashes on a.gguf on m.gguf: GGML_ASSERT")
        model_loading._known.clear()
    assert [child.returncode for child in children] == [0, -signal.SIGABRT]
    for _ in range(2):
        assert run(*flags, "--lora", plain).exit_code == 0
    assert [child.returncode for child in children] == [0, -signal.SIGABRT, 0]


def test_a_draft_that_its_adapter_kills_costs_the_drafts(tmp_path):
    target, draft = (tiny.write(tmp_path / f"{name}.gguf", "llama") for name in ("t", "d"))
    plain = loras.write(tmp_path / "plain.gguf", draft, keys={"adapter.lora.alpha": None})
    deadly = ggufs.with_keys(plain, tmp_path / "a.gguf", ggufs.scalar("adapter.lora.alpha", ggufs.F64, 4.0))
    done = run("x", "-m", target, "-md", draft, "-n", 4, "--raw", "--lora-draft", deadly)
    assert done.exit_code == 0
    assert "draft model is not used: llama.cpp crashes on a.gguf on d.gguf" in " ".join(done.stderr.split())


def test_a_comparison_tells_its_adapters(adapter, tmp_path):
    page = tmp_path / "c.html"
    flags = ("--lora", f"{adapter}:0.9", "-n", 8, "--limit", 2, "-o", page)
    result = json.loads(succeeded("compare", *flags, "--json").stdout)
    settings = {variant["name"]: variant["settings"] for variant in result["variants"]}
    assert {tuple(each["lora"]) for each in settings.values()} == {(f"{adapter}:0.9",)}
    assert "style.gguf:0.9" in page.read_text() and str(adapter.parent) not in page.read_text()


@pytest.mark.slow
def test_tuning_is_kept_by_adapter(adapter, nothing_known):
    done = told("tune", "--seconds", 2, "-t", 1, "--lora", adapter)
    assert done["kept"]
    plain = told("run", "x", "-n", 4, "-m", TARGET, "-md", DRAFT)
    adapted = told("run", "x", "-n", 4, "-m", TARGET, "-md", DRAFT, "--lora", adapter)
    assert (plain["timing"]["measuring_s"] > 0, adapted["timing"]["measuring_s"]) == (True, 0)
