"""`--ngram-corpus` from the command line to the report, on the bundled pair."""

import json
import os
import signal

import pytest
from driver import TARGET, assert_refused, call, configure, run, succeeded, told
from hub_pairs import own_profile
from terminal import Terminal

from specdec_cli.drafters import corpus
from specdec_cli.llama.model import Model

BEGINNING = "import json\n\n\ndef load(path):"
NGRAM = ("-m", TARGET, "--drafter", "ngram", "-n", 40, "-k", 6)


def answer(*args):
    return told("run", *NGRAM, *args, BEGINNING)


@pytest.fixture
def module(tmp_path):
    """A Python file, with something before and after what the target writes when it is given the beginning."""
    path = tmp_path / "code" / "queue.py"
    path.parent.mkdir()
    text = BEGINNING + answer("--drafter", "none")["text"]
    path.write_text(f'"""Reads files."""\n\nimport os\n\n\n{text}\n\n\ndef main():\n    print(load("a"))\n')
    return path


@pytest.fixture
def indexed(monkeypatch):
    """The texts that are turned into tokens for an index."""
    found = []
    tokenize = Model.tokenize

    def noted(self, text, add_bos=True, special=True):
        if not special:
            found.append(text)
        return tokenize(self, text, add_bos, special)

    monkeypatch.setattr(Model, "tokenize", noted)
    return found


@pytest.mark.parametrize("way", ["folder", "environment", "config", "profile"])
def test_what_a_code_base_holds_is_drafted(module, monkeypatch, way):
    without = answer()
    ngram, args = NGRAM, []
    if way == "folder":
        args = ["--ngram-corpus", module.parent]
    elif way == "environment":
        monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", f"{module.parent}{os.pathsep}{module}")
    elif way == "config":
        configure(f"ngram_corpus: {module}\n")
    else:
        own_profile("own", f"target: {TARGET}\nsettings:\n  ngram_corpus: [{module}]\n")
        ngram, args = NGRAM[2:], ["-p", "own"]
    assert "a corpus of " in " ".join(succeeded("run", "-v", *ngram, *args, BEGINNING).stderr.split())
    found = told("run", *ngram, *args, BEGINNING)
    assert found["tokens"] == without["tokens"]
    assert found["stats"]["acceptance_rate"] > 0.6 > without["stats"]["acceptance_rate"] + 0.2
    assert found["stats"]["steps"] < without["stats"]["steps"] / 2


@pytest.mark.slow
def test_a_corpus_is_indexed_once(module, indexed):
    def taken():
        return json.loads(call("doctor", "--json").stdout)["corpora"]["bytes"]

    first = answer("--ngram-corpus", module.parent)
    assert indexed == [module.read_text()]
    again = answer("--ngram-corpus", module.parent)
    assert len(indexed) == 1 and again["stats"] == first["stats"]
    assert taken() > 500
    (module.parent / "more.py").write_text("x = 1\n")
    answer("--ngram-corpus", module.parent)
    assert len(indexed) == 3 and len(list(corpus.folder().iterdir())) == 1


def test_without_a_cache_the_answer_comes_all_the_same(module):
    corpus.folder().parent.mkdir(parents=True, exist_ok=True)
    corpus.folder().write_text("in the way")
    found = answer("--ngram-corpus", module)
    assert found["stats"]["acceptance_rate"] > 0.6
    assert "the index of the corpus is not saved" in " ".join(found["notes"])


def test_what_cannot_be_a_corpus(tmp_path):
    for missing in ("missing.py", "~nobody-of-this-name/missing.py"):
        assert_refused(run(*NGRAM, "--ngram-corpus", missing, "x"), 2, "no file or folder", "missing.py")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    assert_refused(run(*NGRAM, "--ngram-corpus", tmp_path, "x"), 2, "no text in the corpus", tmp_path.name)
    configure("ngram_corpus: [a, 5]\n")
    assert_refused(run(*NGRAM, "x"), 2, "ngram_corpus is")


def test_it_is_for_ngram_alone(module, monkeypatch):
    refused = ("--ngram-corpus is for", "--drafter ngram")
    assert_refused(run("--drafter", "lookahead", "--ngram-corpus", module, "x"), 2, *refused)
    assert_refused(run("--ngram-corpus", module, "x"), 2, *refused)
    alone = run("-m", TARGET, "--drafter", "none", "--ngram-corpus", "missing", "-n", 4, "-q", "x")
    assert alone.exit_code == 0, "any command plus --drafter none is its own baseline"
    monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", str(module.parent / "missing"))
    assert run("-n", 4, "-q", "x").exit_code == 0, "what is always set does not hurt"
    assert_refused(run(*NGRAM, "x"), 2, "there is no file or folder")


@pytest.mark.slow
def test_compare_uses_it_in_the_variants_that_draft_so_and_shows_its_size_and_no_path_on_the_page(module, tmp_path):
    args = ("compare", "-n", 40, "--repeat", 1, "-k", 2, "--vs", "drafter=ngram,k=6", BEGINNING)
    rates = []
    for option in ((), ("--ngram-corpus", module)):
        result = told(*args, *option)
        assert all(found["identical"] == 1 for found in result["exactness"].values())
        rates += [
            variant["acceptance_rate"]
            for variant in result["summaries"]
            if variant["variant"].startswith("drafter=ngram")
        ]
        assert bool(result["corpus"]) == bool(option)
        assert [bool(variant["settings"]["ngram_corpus"]) for variant in result["variants"]] == [
            False,
            False,
            bool(option),
        ]
    assert rates[1] > rates[0] + 0.2
    page = tmp_path / "page.html"
    shown = succeeded(*args, "--ngram-corpus", module, "-o", page).stdout
    assert "a corpus of " in " ".join(shown.split())
    assert "a corpus of " in page.read_text("utf-8") and str(module) not in page.read_text("utf-8")
    assert_refused(call("compare", "--ngram-corpus", module, "x"), 2, "--ngram-corpus is for")


@pytest.mark.slow
def test_progress_is_told_on_a_terminal_and_ctrl_c_ends_it(tmp_path):
    for i in range(300):  # small ones: between two of them it is seen that somebody wants to stop
        (tmp_path / f"{i}.txt").write_text(f"word {i} and more of it\n" * 10_000)
    with Terminal("run", *NGRAM, "--ngram-corpus", tmp_path, "x", streams=("stderr",)) as terminal:
        terminal.read(until="of 300")
        assert terminal.ended_by(signal.SIGINT, within=5) == 130
        assert terminal.process.stdout.read() == b"" and list(corpus.folder().glob("*")) == []
