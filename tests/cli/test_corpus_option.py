"""`--ngram-corpus` from the command line to the report, on the bundled pair."""

import json
import os

import pytest
from driver import TARGET, assert_refused, call, configure, run, succeeded, told
from hub_pairs import own_profile

from specdec_cli.drafters import corpus

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


@pytest.mark.parametrize("way", ["flag", "environment", "profile"])
def test_what_a_code_base_holds_is_drafted(module, monkeypatch, way):
    without = answer()
    ngram, args = NGRAM, []
    if way == "flag":
        args = ["--ngram-corpus", module.parent]
    elif way == "environment":
        monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", f"{module.parent}{os.pathsep}{module}")
    else:
        own_profile("own", f"target: {TARGET}\nsettings:\n  ngram_corpus: [{module}]\n")
        ngram, args = NGRAM[2:], ["-p", "own"]
    found = told("run", *ngram, *args, BEGINNING)
    assert found["tokens"] == without["tokens"]
    assert found["stats"]["acceptance_rate"] > 0.6 > without["stats"]["acceptance_rate"] + 0.2
    assert found["stats"]["steps"] < without["stats"]["steps"] / 2


def test_without_a_cache_the_answer_comes_all_the_same(module):
    corpus.folder().parent.mkdir(parents=True, exist_ok=True)
    corpus.folder().write_text("in the way")
    found = answer("--ngram-corpus", module)
    assert found["stats"]["acceptance_rate"] > 0.6
    assert "the index of the corpus is not saved" in " ".join(found["notes"])


def test_what_cannot_be_a_corpus(tmp_path):
    missing = "~nobody-of-this-name/missing.py"
    assert_refused(run(*NGRAM, "--ngram-corpus", missing, "x"), 2, "no file or folder", "missing.py")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    assert_refused(run(*NGRAM, "--ngram-corpus", tmp_path, "x"), 2, "no text in the corpus", tmp_path.name)
    configure("ngram_corpus: [a, 5]\n")
    assert_refused(run(*NGRAM, "x"), 2, "ngram_corpus is")


def test_it_is_for_ngram_alone(module, monkeypatch):
    assert_refused(run("--ngram-corpus", module, "x"), 2, "--ngram-corpus is for", "--drafter ngram")
    alone = run("-m", TARGET, "--drafter", "none", "--ngram-corpus", "missing", "-n", 4, "-q", "x")
    assert alone.exit_code == 0, "any command plus --drafter none is its own baseline"
    monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", str(module.parent / "missing"))
    assert run("-n", 4, "-q", "x").exit_code == 0, "what is always set does not hurt"
    assert_refused(run(*NGRAM, "x"), 2, "there is no file or folder")


@pytest.mark.slow
def test_a_comparison_uses_it_and_its_page_names_no_path(module, tmp_path):
    page = tmp_path / "page.html"
    args = ("compare", "-n", 40, "--repeat", 1, "-k", 2, "--vs", "drafter=ngram,k=6", BEGINNING)
    result = json.loads(succeeded(*args, "--ngram-corpus", module, "-o", page, "--json").stdout)
    assert all(found["identical"] == 1 for found in result["exactness"].values())
    used = {each["name"]: bool(each["settings"]["ngram_corpus"]) for each in result["variants"]}
    assert [name for name, has in used.items() if has] == ["drafter=ngram,k=6"]
    assert "a corpus of " in page.read_text("utf-8") and str(module) not in page.read_text("utf-8")
    assert_refused(call("compare", "--ngram-corpus", module, "x"), 2, "--ngram-corpus is for")
