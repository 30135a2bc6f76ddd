"""`specdec drafters`, cascades by name, `--ngram-corpus`, and drafters from other packages: docs/plugins.md has one."""

import os
import re
import sys
from pathlib import Path

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, configure, run, succeeded, told
from hub_pairs import own_profile

from specdec_cli import drafters
from specdec_cli.drafters import corpus
from specdec_cli.settings import settings

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text("utf-8")
MODELS = ("-m", TARGET, "-md", DRAFT)


def answer(*args):
    return told("run", *MODELS, "-n", 32, *args, PROMPT)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with a drafter where this process finds it."""

    def forget() -> None:
        sys.modules.pop("specdec_again", None)
        drafters._foreign.cache_clear()
        drafters.spec.cache_clear()
        settings._cascade.cache_clear()

    def install(code: str, entries: str) -> None:
        about = tmp_path / "specdec_again-1.0.dist-info"
        about.mkdir()
        (tmp_path / "specdec_again.py").write_text(code)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec_again\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[specdec.drafters]\n{entries}\n")
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield install
    monkeypatch.undo()
    forget()


def example() -> tuple[str, str]:
    code = next(code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "AgainDrafter" in code)
    entry = re.search(r'specdec\.drafters"\]\n(.*?)\n```', PAGE, re.DOTALL)[1]
    assert code.count("\n") < 40
    return code, entry.replace(chr(34), "")  # as an installer writes it


def test_drafters_that_there_are_not():
    for name, says in (("nothing", "model, mtp, eagle3, medusa"), ("", "model, mtp"), ("ngram+none", "ngram+model")):
        assert_refused(run(*MODELS, "--drafter", name, PROMPT), 2, repr(name), says)


def test_the_example_of_a_package_works(install):
    install(*example())
    alone = answer("--drafter", "none")["tokens"]
    listed = told("drafters")["drafters"]
    assert [found["from"] for found in listed if found["name"] == "again"] == ["specdec_again"]
    for name in ("again", "again+model"):
        assert answer("-k", "3", "--drafter", name)["tokens"] == alone


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_the_kind\n", "nothing_of_the_kind"),
        ("class AgainDrafter: pass\n", "create"),
    ],
)
def test_a_package_that_does_not_load_is_told_and_the_others_work(install, code, says):
    install(code, example()[1])
    shown = succeeded("drafters").stdout
    assert "ngram" in shown and says in shown and "again (from specdec_again)" in shown
    assert_refused(run(*MODELS, "--drafter", "again", PROMPT), 2, says, "specdec_again")
    assert run(*MODELS, "-n", "4", "-q", PROMPT).exit_code == 0


# --- a corpus ---

BEGINNING = "import json\n\n\ndef load(path):"
NGRAM = ("-m", TARGET, "--drafter", "ngram", "-n", 40, "-k", 6)


def found(*args):
    return told("run", *args, BEGINNING)


@pytest.fixture
def module(tmp_path):
    """A Python file, with something before and after what the target writes when it is given the beginning."""
    path = tmp_path / "code" / "queue.py"
    path.parent.mkdir()
    text = BEGINNING + found(*NGRAM, "--drafter", "none")["text"]
    path.write_text(f'"""Reads files."""\n\nimport os\n\n\n{text}\n\n\ndef main():\n    print(load("a"))\n')
    return path


def test_what_a_code_base_holds_is_drafted_however_that_is_said(module, monkeypatch):
    without = found(*NGRAM)
    own_profile("own", f"target: {TARGET}\nsettings:\n  ngram_corpus: [{module}]\n")
    said = [found(*NGRAM, "--ngram-corpus", module.parent), found(*NGRAM[2:], "-p", "own")]
    monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", f"{module.parent}{os.pathsep}{module}")
    for known in (*said, found(*NGRAM)):
        assert known["tokens"] == without["tokens"]
        assert known["stats"]["acceptance_rate"] > 0.6 > without["stats"]["acceptance_rate"] + 0.2
        assert known["stats"]["steps"] < without["stats"]["steps"] / 2


def test_without_a_cache_the_answer_comes_all_the_same(module):
    corpus.folder().parent.mkdir(parents=True, exist_ok=True)
    corpus.folder().write_text("in the way")
    known = found(*NGRAM, "--ngram-corpus", module)
    assert known["stats"]["acceptance_rate"] > 0.6
    assert "the index of the corpus is not saved" in " ".join(known["notes"])


def test_what_cannot_be_a_corpus(tmp_path):
    missing = "~nobody-of-this-name/missing.py"
    assert_refused(run(*NGRAM, "--ngram-corpus", missing, "x"), 2, "no file or folder", "missing.py")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    assert_refused(run(*NGRAM, "--ngram-corpus", tmp_path, "x"), 2, "no text in the corpus", tmp_path.name)
    configure("ngram_corpus: [a, 5]\n")
    assert_refused(run(*NGRAM, "x"), 2, "ngram_corpus is")


def test_a_corpus_is_for_ngram_alone(module, monkeypatch):
    assert_refused(run("--ngram-corpus", module, "x"), 2, "--ngram-corpus is for", "--drafter ngram")
    alone = run("-m", TARGET, "--drafter", "none", "--ngram-corpus", "missing", "-n", 4, "-q", "x")
    assert alone.exit_code == 0, "any command plus --drafter none is its own baseline"
    monkeypatch.setenv("SPECDEC_NGRAM_CORPUS", str(module.parent / "missing"))
    assert run("-n", 4, "-q", "x").exit_code == 0, "what is always set does not hurt"
    assert_refused(run(*NGRAM, "x"), 2, "there is no file or folder")
