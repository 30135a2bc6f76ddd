"""`specdec drafters`, chains by name, and drafters from other packages: the example in docs/plugins.md is one."""

import re
import sys
from pathlib import Path

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, run, succeeded, told

from specdec_cli import drafters
from specdec_cli.settings import config

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text("utf-8")
MODELS = ("-m", TARGET, "-md", DRAFT)


def answer(*args):
    return told("run", *MODELS, "-n", 32, *args, PROMPT)


@pytest.fixture(scope="module")
def alone():
    return answer("--drafter", "none")["tokens"]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with a drafter where this process finds it."""

    def forget() -> None:
        sys.modules.pop("specdec_again", None)
        drafters._foreign.cache_clear()
        drafters.spec.cache_clear()
        config._chain.cache_clear()

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


def test_the_example_of_a_package_works(alone, install):
    install(*example())
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
