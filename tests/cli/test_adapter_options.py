"""`--lora` and `--lora-draft`: where they may be said, what the records say of them, and what is refused."""

import json
import shutil
import signal

import ggufs
import loras
import tiny
from driver import DRAFT, TARGET, assert_refused, call, run, succeeded, told
from hub_pairs import own_profile

from specdec_cli import load
from specdec_cli.weights import model_loading

SHORT = ("run", "def median(values):\n    return", "-n", 24, "-k", 3)


def test_it_is_said_which_adapters_are_used(adapter, of_draft, tmp_path):
    plain = told(*SHORT)
    flags = ("--lora", f"{adapter}:0.9", "--lora", f"{adapter}:0", "--lora-draft", of_draft)
    answer = told(*SHORT, *flags, "--trace", tmp_path / "t.jsonl")
    assert (plain["lora"], plain["lora_draft"]) == ([], []) and answer["text"] != plain["text"]
    assert (answer["lora"], answer["lora_draft"]) == ([f"{adapter}:0.9"], [f"{of_draft}:1"])
    shown = " ".join(succeeded(*SHORT, *flags).stderr.split())
    assert "lora=style.gguf:0.9, lora-draft=draft-style.gguf:1" in shown and str(adapter.parent) not in shown
    assert "lora=style.gguf:0.9" in " ".join(succeeded("replay", tmp_path / "t.jsonl").stderr.split())


def test_every_layer_may_say_it(adapter, of_draft):
    expected = told(*SHORT, "--lora", f"{adapter}:0.9")
    shutil.copy(adapter, own_profile("mine", "") / "style.gguf")
    settings = "settings:\n  lora: style.gguf:0.9\n"
    own_profile("mine", f"target: {TARGET}\ndraft: {DRAFT}\n{settings}")
    found = told(*SHORT, "-p", "mine")
    assert found["text"] == expected["text"] and found["lora"][0].endswith("profiles/style.gguf:0.9")
    variable = json.loads(call(*SHORT, "--json", SPECDEC_LORA=f"{adapter}:0.5 {adapter}:0.4").stdout)
    assert variable["lora"] == [f"{adapter}:0.5", f"{adapter}:0.4"]
    with load(target=TARGET, draft=DRAFT, lora=f"{adapter}:0.9", lora_draft=[of_draft], threads=1) as engine:
        assert [str(each) for each in engine.pair.adapters] == [f"{adapter}:0.9"]
        assert [each.path for each in engine.pair.draft_adapters] == [of_draft]


def test_what_is_refused(adapter, tmp_path):
    other = loras.write(tmp_path / "other.gguf", tiny.write(tmp_path / "m.gguf", "llama"))
    for text, code, says in (
        (tmp_path / "none.gguf", 2, "there is no file"),
        (f"{adapter}:much", 2, "is not a number: 'much'"),
        (f"{adapter}:nan", 2, "cannot be nan"),
        (TARGET, 1, "target.gguf is a model, not an adapter"),
        (other, 1, "Name an adapter that was made for this model."),
    ):
        assert_refused(call(*SHORT, "--lora", text), code, says)
        assert_refused(call(*SHORT, "--lora-draft", text), code, says)


def test_an_adapter_is_tried_once_with_its_model(tmp_path, monkeypatch, own_trials, started):
    """llama.cpp aborts on an alpha of 64 bits."""
    monkeypatch.setattr(model_loading, "_known", {})
    model = tiny.write(tmp_path / "m.gguf", "llama")
    plain = loras.write(tmp_path / "plain.gguf", model, keys={"adapter.lora.alpha": None})
    deadly = ggufs.with_keys(plain, tmp_path / "a.gguf", ggufs.scalar("adapter.lora.alpha", ggufs.F64, 4.0))
    flags = ("x", "-m", model, "--drafter", "none", "-n", 2, "--raw")
    for _ in range(2):
        assert_refused(run(*flags, "--lora", deadly), 1, "llama.cpp crashes on a.gguf on m.gguf: GGML_ASSERT")
        model_loading._known.clear()
    assert [child.returncode for child in started] == [0, -signal.SIGABRT]
    for _ in range(2):
        assert run(*flags, "--lora", plain).exit_code == 0
    assert [child.returncode for child in started] == [0, -signal.SIGABRT, 0]
