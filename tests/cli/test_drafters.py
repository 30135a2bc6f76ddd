"""`specdec drafters`, chains by name, and drafters from other packages: the example in CONTRIBUTING.md is one."""

import json
import os
import re
from pathlib import Path

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, complaint, run, specdec
from typer.testing import CliRunner

from specdec_cli.cli.app import app

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
MODELS = ("-m", TARGET, "-md", DRAFT)


def answer(*args):
    done = run(*MODELS, "-n", 48, "--json", *args, PROMPT)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def packages(tmp_path):
    """A folder of installed packages for a process of its own, and how to put one there."""

    def install(module: str, code: str, entries: str) -> dict[str, str]:
        (tmp_path / f"{module}.py").write_text(code)
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[specdec.drafters]\n{entries}\n")
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return install


def example() -> tuple[str, str]:
    code = re.search(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)[1]
    entry = re.search(r'specdec\.drafters"\]\n(.*?)\n```', CONTRIBUTING, re.DOTALL)[1]
    assert "class AgainDrafter" in code and code.count("\n") < 40
    return code, entry.replace(chr(34), "")  # as an installer writes it


def test_the_list():
    done = CliRunner().invoke(app, ["drafters", "--json"])
    found = {drafter["name"]: drafter for drafter in json.loads(done.stdout)["drafters"]}
    assert list(found) == ["model", "ngram", "lookahead", "self", "small", "none"]
    assert all(drafter["needs"] and drafter["helps"] and not drafter["problem"] for drafter in found.values())
    text = CliRunner().invoke(app, ["drafters"]).stdout
    assert all(name in text for name in found) and "small model" in text


@pytest.mark.parametrize(
    "drafter", ["ngram", "ngram+model", "model+ngram", "lookahead", "model<ngram", "ngram+lookahead"]
)
@pytest.mark.parametrize("k", ["auto", "41"])
def test_the_text_is_the_targets_own(drafter, k):
    alone = answer("--drafter", "none")
    found = answer("--drafter", drafter, "-k", k)
    assert found["tokens"] == alone["tokens"] and found["drafter"] == drafter
    if k == "41":
        assert found["stats"]["accepted"] > 0


def test_match_with_a_seed_gives_the_text_of_the_target_alone():
    sampled = ("--temp", "0.8", "-s", "3", "--accept", "match")
    alone = answer("--drafter", "none", *sampled)
    for drafter in ("ngram", "ngram+model"):
        assert answer("--drafter", drafter, "-k", "4", *sampled)["tokens"] == alone["tokens"]


def test_no_draft_model_is_loaded_where_none_is_needed():
    done = run("-m", TARGET, "-n", "8", "--drafter", "ngram", PROMPT)
    assert done.exit_code == 0 and "draft.gguf" not in done.stderr and "target.gguf + ngram" in done.stderr
    assert_refused(run("-m", TARGET, PROMPT), 1, "no draft model", "--drafter ngram")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "model, ngram, lookahead, self, small, none"),
        ("ngram+none", "ngram+model"),
        ("ngram+ngram", "ngram+model"),
        ("ngram+", "model, ngram, lookahead, self, small, none"),
        ("", "model, ngram, lookahead, self, small, none"),
    ],
)
def test_drafters_that_there_are_not(name, says):
    assert_refused(run(*MODELS, "--drafter", name, PROMPT), 2, repr(name), says)


def test_the_example_of_a_package_works(packages):
    code, entry = example()
    env = packages("specdec_again", code, entry)
    listed = json.loads(specdec("drafters", "--json", env=env).stdout)["drafters"]
    assert [(found["name"], found["from"]) for found in listed if found["from"] != "specdec"] == [
        ("again", "specdec_again")
    ]
    plain = answer("--drafter", "none")
    for name in ("again", "again+model"):
        done = specdec("run", *MODELS, "-n", "48", "-k", "3", "--drafter", name, "--json", PROMPT, env=env)
        assert json.loads(done.stdout)["tokens"] == plain["tokens"], done.stderr


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_the_kind\n", "nothing_of_the_kind"),
        ("class AgainDrafter: pass\n", "create"),
        ("", "AgainDrafter"),
    ],
)
def test_a_package_that_does_not_load_is_told_and_the_others_work(packages, code, says):
    env = packages("specdec_again", code, example()[1])
    done = specdec("drafters", env=env)
    assert done.returncode == 0 and b"ngram" in done.stdout and says.encode() in done.stdout
    what, _ = complaint(specdec("run", *MODELS, "--drafter", "again", PROMPT, env=env).stderr)
    assert says in what and "specdec_again" in what
    assert specdec("run", *MODELS, "-n", "4", "-q", PROMPT, env=env).returncode == 0
