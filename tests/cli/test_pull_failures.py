"""Whatever can go wrong with a pull: two lines, the right exit code, and nothing half-recorded."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest
from driver import TARGET, assert_refused, complaint
from hub_pairs import BIG, BIG_FILE, PAIR, SMALL_FILE, WINDOW, files, pull_here, pulled_here, refused_here, weights
from huggingface_hub import constants


def target(name: str) -> tuple[str, ...]:
    return ("--target", name, *PAIR[2:])


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody/nothing:Q4_K_M", ["no repository nobody/nothing", "HF_TOKEN"]),
        (f"{BIG}:Q2_K", ["no quantisation Q2_K", f"Available: {BIG}:Q4_K_M."]),
    ],
)
def test_what_is_not_on_the_hub(hub, inside, tmp_path, name, says):
    for args in (target(name), (*PAIR[:2], "--draft", name)):
        refused_here(tmp_path, *says, args=args)
    assert hub.served <= WINDOW and inside == []


@pytest.mark.parametrize(
    "args",
    [
        *((*PAIR[:2], f"--draft={name}") for name in ("../x:Q4_K_M", "org/name/../../x.gguf", "org/n\0:Q4_K_M", "-")),
        *((*PAIR, "--as", name) for name in ("../evil", "x" * 300, "a\0b")),
        *((), ("demo", *PAIR), ("--draft", PAIR[3]), ("demo", "--as", "x")),
        *((name,) for name in ("no-such-profile", "../demo", "x" * 5000)),
    ],
)
def test_names_that_are_none_and_what_makes_no_sense(hub, inside, tmp_path, args):
    refused_here(tmp_path, *(["no profile"] if len(args) == 1 else []), args=args, code=2)
    assert hub.requests == []


def test_the_bundled_pair_needs_no_hub_and_a_file_that_is_no_model_costs_its_beginning(hub, inside, tmp_path):
    hub.add("org/none", {"x-Q8_0.gguf": b"<!doctype html>" * 20_000})
    assert pulled_here("demo")["already"] and hub.requests == []
    refused_here(tmp_path, "not a GGUF", args=target("org/none:Q8_0"), code=1)
    assert 0 < hub.served <= WINDOW


# --- rights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gated", "private"])
def test_a_repository_that_is_not_for_all(hub, monkeypatch, inside, tmp_path, kind):
    hub.add(BIG, {BIG_FILE: TARGET}, **{kind: True})
    refused_here(tmp_path, kind, "HF_TOKEN", *([f"{hub.endpoint}/{BIG}"] if kind == "gated" else []))
    monkeypatch.setenv("HF_TOKEN", hub.token)
    if kind == "gated":
        refused_here(tmp_path, "gated", "Accept it")
        hub.granted.add(BIG)
    pulled_here()


@pytest.mark.parametrize("token", ["hf_wrong", "hf_é", "a\nb"])
def test_a_bad_token(hub, monkeypatch, inside, tmp_path, token):
    monkeypatch.setenv("HF_TOKEN", token)
    refused_here(tmp_path, "HF_TOKEN")


# --- no Hub ------------------------------------------------------------------------------------------------------


def test_no_network(hub, monkeypatch, inside, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    refused_here(tmp_path, "HF_ENDPOINT")
    assert inside == []  # waiting would not mend it


@pytest.mark.parametrize("body", [b"<!doctype html><p>Log in to the wireless network", b'{"a": 1}'])
def test_something_else_answers_in_the_hubs_place(hub, monkeypatch, inside, tmp_path, body):
    monkeypatch.setattr("specdec_cli.pairs.hub.repository._listing", lambda _: body)
    refused_here(tmp_path, "HF_ENDPOINT")


# --- the disk ----------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_before(hub, inside, tmp_path):
    """A petabyte, of which there is the first megabyte."""
    file = hub.repos[BIG].commits[hub.repos[BIG].main][BIG_FILE]
    hub.repos[BIG].commits[hub.repos[BIG].main][BIG_FILE] = replace(file, size=10**15)
    refused_here(tmp_path, "1,000,00", "GB free", "HF_HOME")
    assert weights(hub) == 0 and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "is full"), (errno.EFBIG, "cannot hold a file this large")],
)
def test_a_disk_that_refuses(hub, inside, tmp_path, monkeypatch, number, says):
    """As FAT does a large file."""
    fail = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr("specdec_cli.pairs.hub.download._fetch_until_broken", fail)
    refused_here(tmp_path, says, "HF_HOME")
    assert weights(hub) == 0


def test_a_file_in_the_caches_place(hub, inside, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hub").write_text("in the way")
    refused_here(tmp_path, "HF_HOME")


def test_a_record_that_cannot_be_written(hub, inside, tmp_path):
    config = tmp_path / "config" / "specdec"
    config.mkdir(parents=True)
    (config / "pulled").write_text("in the way")
    result = pull_here(*PAIR)
    assert result.exit_code in (1, 4) and "pulled" in complaint(result.stderr)[0]
    assert [path.name for path in config.rglob("*") if path.is_file()] == ["pulled"]  # no profile without its record
    (config / "pulled").unlink()
    assert weights(hub) == 0, "found out before the gigabytes"
    pulled_here(*PAIR)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_failed_pull_forgets_no_earlier_one(hub, inside, tmp_path, monkeypatch, damaged):
    pulled_here(*PAIR, "--as", "mini")
    shutil.rmtree(tmp_path / "hf")
    record = tmp_path / "config" / "specdec" / "pulled" / "mini.json"
    if damaged:
        record.write_text("{")
    before = record.read_text()
    fail = Mock(side_effect=OSError(errno.ENOSPC, ""))
    with monkeypatch.context() as full:
        full.setattr("specdec_cli.pairs.hub.download._fetch_until_broken", fail)
        assert_refused(pull_here("mini"), 4, "is full")
    assert record.exists() and (damaged or record.read_text() == before)
    pulled_here("mini")


# --- a Hub that lies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../../../../x-Q4_K_M.gguf", "/tmp/x-Q4_K_M.gguf", "..\\..\\x-Q4_K_M.gguf"],
)
def test_files_that_would_lie_outside(hub, inside, tmp_path, name):
    hub.add(BIG, {name: TARGET})
    before = set(tmp_path.rglob("*"))
    refused_here(tmp_path, "no GGUF file", args=target(BIG))
    assert hub.served == 0 and set(tmp_path.rglob("*")) == before
    hub.add(BIG, {name: TARGET, BIG_FILE: TARGET})
    assert pulled_here(*PAIR)["target"]["files"][0]["name"] == BIG_FILE
    assert files(tmp_path) == [SMALL_FILE, BIG_FILE]


EVIL = "../../../../evil"
SIBLING = {"rfilename": BIG_FILE, "blobId": "0" * 40, "size": 5}
LISTINGS = {
    "commit": {"sha": EVIL},
    "no commit": {"sha": None},
    "digest": {"siblings": [{"rfilename": BIG_FILE, "lfs": {"sha256": EVIL, "size": 9632928, "pointerSize": 1}}]},
    "no digest": {"siblings": [{"rfilename": BIG_FILE, "size": 9632928}]},
    "no size": {"siblings": [{"rfilename": BIG_FILE, "blobId": "0" * 40}]},
    "a size below 0": {"siblings": [SIBLING | {"size": -5}]},
    "git's digest": {"siblings": [SIBLING | {"blobId": EVIL}]},
    "a long name": {"siblings": [SIBLING | {"rfilename": "x" * 300 + "-Q4_K_M.gguf"}]},
    "an escape": {"siblings": [SIBLING | {"rfilename": "\x1b[2J-Q4_K_M.gguf"}]},
    "no files": {"siblings": None},
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_that_cannot_be_right(hub, inside, tmp_path, kind):
    info = hub.repos[BIG].info
    hub.repos[BIG].info = lambda *args, **options: info(*args, **options) | LISTINGS[kind]
    text = refused_here(tmp_path)
    assert "\x1b" not in text
    assert not (tmp_path / "hf").exists() and not list(tmp_path.parent.glob("evil*"))


def test_a_file_whose_name_is_no_pairs(hub, inside, tmp_path):
    """Not a path, but not a name for a pair either: one can be given."""
    hub.add(BIG, {"-m-Q8_0.gguf": TARGET})
    refused_here(tmp_path, "--as", args=target(f"{BIG}:Q8_0"), code=2)
    assert pulled_here(*target(f"{BIG}:Q8_0"), "--as", "mine")["already"] is False
