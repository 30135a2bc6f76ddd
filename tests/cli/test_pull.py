"""`specdec pull` as a person uses it, against a Hub on loopback through the real huggingface_hub.

Whatever goes wrong: two lines, the right exit code, and nothing half-recorded.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import struct
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import ggufs
import hub_pairs
import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, complaint, run, told
from hub_pairs import BIG, BIG_FILE, FAR, NAME, NEAR, PAIR, SIZES, SMALL, SMALL_FILE, WINDOW, pulled_here, refused_here
from hub_server import HubServer
from huggingface_hub import constants
from terminal import Terminal

from specdec_cli.pairs import profiles


def run_here(*args: object) -> dict:
    result = run(PROMPT, "-n", 12, "-k", 3, "--json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_pair_is_pulled_and_runs_as_the_bundled_one(hub, inside, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert pulled_here(*PAIR)["name"] == NAME
    # What is asked for, in order: both files and their headers first, then the weights once.
    contents = [(request.file, request.range) for request in hub.requests if request.file]
    big, small = f"{BIG}/{BIG_FILE}", f"{SMALL}/{SMALL_FILE}"
    header = f"bytes=0-{WINDOW - 1}"
    assert contents == [(big, header), (small, header), (big, None), (small, None)]
    assert (hub_pairs.weights(hub, BIG_FILE), hub_pairs.weights(hub, SMALL_FILE)) == SIZES
    assert hub_pairs.records(tmp_path) == [NAME] and hub_pairs.files(tmp_path) == [SMALL_FILE, BIG_FILE]
    # The token is the Hub's affair, not that of the hosts it leads to.
    tokens = {(request.path.startswith("/cdn/"), request.token) for request in hub.requests}
    assert tokens == {(False, hub.token), (True, None)}
    hub.reset()
    about = pulled_here(*PAIR)
    assert (about["already"], about["downloaded"], about["name"]) == (True, 0, NAME)
    ours, same = run_here("-p", NAME), run_here()
    assert (ours["text"], ours["tokens"]) == (same["text"], same["tokens"])
    assert hub.requests == []  # none of that needed the Hub


def test_an_incompatible_pair_costs_two_headers(hub, inside, tmp_path):
    hub.add(SMALL, {SMALL_FILE: hub_pairs.with_other_tokenizer(tmp_path)})
    refused_here(tmp_path, "token 300", code=3)
    assert 0 < hub.served <= 2 * WINDOW
    assert not (tmp_path / "hf").exists() and not (tmp_path / "config").exists()


def test_what_lies_on_the_disk_is_compared_again(hub, inside, tmp_path):
    """A draft whose header was altered on the way to look compatible: its file, checksum and all, is not."""
    other, where = ggufs.opened(DRAFT)
    at = ggufs.place_of_token(other, where, 300)
    other[at] ^= 1
    hub.add(SMALL, {SMALL_FILE: bytes(other)})
    hub.alter(hub_pairs.content(hub, SMALL_FILE, 1), at=at)
    for _ in range(2):
        assert_refused(hub_pairs.pull_here(*PAIR), 3, "token 300")
    assert told("rm", NAME, "--yes")["freed"] == sum(SIZES)  # what was downloaded can be removed
    assert not list((tmp_path / "config").rglob("*.*"))


@pytest.mark.slow
def test_a_split_model_comes_in_all_its_parts(hub, inside, tmp_path):
    whole = tmp_path / "parts" / "target-Q8_0.gguf"
    whole.parent.mkdir()
    whole.write_bytes(TARGET.read_bytes())
    parts = ggufs.split(whole, whole.parent, max_tensors=25)
    assert len(parts) > 2
    hub.add("org/split-GGUF", {f"Q8_0/{part.name}": part for part in parts})
    found = pulled_here("--target", "org/split-GGUF:Q8_0", *PAIR[2:], "--as", "halves")
    total = sum(part.stat().st_size for part in parts) + SIZES[1]
    assert found["downloaded"] == total
    assert [file["name"] for file in found["target"]["files"]] == [f"Q8_0/{part.name}" for part in parts]
    assert hub_pairs.files(tmp_path) == sorted([SMALL_FILE, *(part.name for part in parts)])
    assert run_here("-p", "halves")["text"] == run_here()["text"]


def test_a_dry_run_costs_two_headers_and_keeps_nothing(hub, inside, tmp_path):
    plan = pulled_here(*PAIR, "--dry-run")
    assert plan["to_download"] == sum(SIZES) and plan["check"]["memory"]["needed"] > sum(SIZES)
    assert 0 < hub.served <= 2 * WINDOW
    hub_pairs.assert_nothing_kept(tmp_path)
    assert not (tmp_path / "hf").exists()


@pytest.mark.slow
def test_two_pulls_of_one_pair_at_once(hub, tmp_path):
    hub.stall(hub_pairs.content(hub, BIG_FILE, 2), seconds=60, after=5_000_000)
    first = hub_pairs.begin(hub, tmp_path, *PAIR)
    hub_pairs.wait_until(lambda: hub_pairs.begun(tmp_path) > 4_000_000, first)
    second = hub_pairs.begin(hub, tmp_path, *PAIR)
    seen = b""
    while b"waiting" not in seen:  # it says so, and does not fetch the same bytes beside the first
        seen += second.stderr.read1()
    assert hub_pairs.weights(hub) <= 5_000_000
    there = hub_pairs.begun(tmp_path)
    first.kill()
    first.communicate()
    out, errors = second.communicate(timeout=20)
    assert second.returncode == 0 and b"is ready" in out, errors.decode()
    assert hub_pairs.weights(hub, SMALL_FILE) == SIZES[1]  # once
    # The second goes on where the first was killed.
    assert [request.range for request in hub.requests if request.file == f"{BIG}/{BIG_FILE}"][3] == f"bytes={there}-"
    assert hub_pairs.records(tmp_path) == [NAME] and hub_pairs.files(tmp_path) == [SMALL_FILE, BIG_FILE]


def test_a_server_without_ranges(hub, inside):
    """Of a header little more is read than it takes; a download begins again, and that is said."""
    hub.add(BIG, {BIG_FILE: TARGET.read_bytes() + bytes(30_000_000)})
    hub.ranges = False
    plan = pulled_here(*PAIR, "--dry-run")
    assert "range requests" in plan["notes"][0] and len(plan["notes"]) == 1
    sent = sum(request.sent for request in hub.requests if request.file == f"{BIG}/{BIG_FILE}")
    assert sent < WINDOW + 6_000_000  # what two sockets hold
    (file,) = plan["target"]["remote"]["files"]
    blobs = Path(file["path"]).parents[2] / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / f"{file['digest']}.incomplete").write_bytes(TARGET.read_bytes()[:5_000_000])
    hub.reset()
    assert "range requests" in pulled_here(*PAIR)["notes"][0]
    whole = [request.sent for request in hub.requests if request.file == f"{BIG}/{BIG_FILE}"][-1]
    assert whole == file["size"] == Path(file["path"]).stat().st_size


def test_without_the_network(hub, inside, monkeypatch, tmp_path):
    def offline(value):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", value)

    offline(True)
    refused_here(tmp_path, "HF_HUB_OFFLINE", BIG)
    assert hub.requests == []
    offline(False)
    assert not pulled_here(*PAIR)["already"]
    hub.close()
    assert pulled_here(*PAIR)["already"]
    offline(True)
    assert pulled_here(*PAIR)["already"]


def test_two_pairs_whose_files_have_the_same_names(hub, inside, tmp_path):
    """As those of two uploaders have: the second must not pass for the first."""
    pulled_here(*PAIR)
    record = (tmp_path / "config" / "specdec" / "pulled" / f"{NAME}.json").read_bytes()
    hub.add("other/target-GGUF", {BIG_FILE: TARGET.read_bytes() + struct.pack("<Q", 1)})
    others = ("--target", "other/target-GGUF:Q4_K_M", *PAIR[2:])
    for name in ("demo", NAME):
        assert_refused(hub_pairs.pull_here(*others, "--as", name), 2, "--as", repr(name))
    second = pulled_here(*others)["name"]
    assert second.startswith("other+") and second.endswith(NAME)
    assert (tmp_path / "config" / "specdec" / "pulled" / f"{NAME}.json").read_bytes() == record
    assert profiles.load(second).target == "other/target-GGUF:Q4_K_M"
    assert pulled_here(*others)["already"] and hub_pairs.records(tmp_path) == sorted([second, NAME])


def test_a_profile_is_pulled_by_its_name_and_a_target_without_its_flag(hub, inside, tmp_path):
    hub_pairs.own_profile("mine", f"target: {PAIR[1]}\ndraft: {PAIR[3]}\n")
    assert_refused(run(PROMPT, "-p", "mine"), 4, "Download it: specdec pull mine")
    assert pulled_here("mine")["run"] == "specdec run -p mine" and hub_pairs.records(tmp_path) == ["mine"]
    assert run_here("-p", "mine")["completion_tokens"] == 12
    assert pulled_here("mine")["already"]
    hub_pairs.own_profile("alone", f"target: {PAIR[1]}\n")
    found = pulled_here("alone")
    assert (found["draft"], found["check"], set(found["paths"])) == (None, None, {"target"})
    assert pulled_here(PAIR[1], *PAIR[2:])["name"] == "mine" and hub_pairs.records(tmp_path) == ["alone", "mine"]
    assert_refused(hub_pairs.pull_here("--target", TARGET, *PAIR[2:], "--as", "own"), 2, "all on the Hub")


def test_weights_that_another_model_replaces_are_named(hub, inside):
    hub_pairs.own_profile("mine", f"target: {PAIR[1]}\ndraft: {PAIR[3]}\n")
    assert pulled_here("mine")["notes"] == []
    hub.add("other/target-GGUF", {BIG_FILE: TARGET.read_bytes() + struct.pack("<Q", 1)})
    hub_pairs.own_profile("mine", f"target: other/target-GGUF:Q4_K_M\ndraft: {PAIR[3]}\n")
    (note,) = pulled_here("mine")["notes"]
    assert f"no pair will use {BIG}/{BIG_FILE} (9.6 MB)" in note and note.endswith("specdec rm mine")


# --- on a terminal ---


def terminal(hub: HubServer, folder: Path, *args: object) -> Terminal:
    """A pull on a terminal."""
    return Terminal("pull", *args, env=hub_pairs.environment(hub, folder))


def test_a_download_shown_and_interrupted(hub, tmp_path):
    hub.slow(hub_pairs.content(hub, BIG_FILE), 3_000_000)
    with terminal(hub, tmp_path, *PAIR, "--yes") as shown:
        big = re.compile(rf"^{BIG_FILE} .* [1-9]\.\d/9\.6 MB +\d+\.\d [kM]B/s +0:\d\d:\d\d", re.MULTILINE)
        small = re.compile(rf"^{SMALL_FILE} .*[ /]1\.1 MB", re.MULTILINE)
        shown.read(until=lambda: big.search(shown.text) and small.search(shown.text))
        assert shown.ended_by(signal.SIGINT, within=10) == 130 and "interrupted" in shown.text
    hub_pairs.assert_nothing_kept(tmp_path)
    assert hub_pairs.records(tmp_path) == [NAME], "so that rm knows of it"
    there = hub_pairs.begun(tmp_path)
    assert there >= 1 << 20
    hub.faults.clear()
    hub.reset()
    with terminal(hub, tmp_path, *PAIR) as shown:
        assert f"{there / SIZES[0]:.0%} here" in shown.read(until="Download?")
        shown.press(b"\n")  # yes
        assert shown.ended() == 0
    assert hub_pairs.weights(hub, BIG_FILE) == SIZES[0] - there
    assert f"specdec run -p {NAME}" in shown.text


@pytest.mark.slow
def test_a_download_that_is_refused(hub, tmp_path):
    with terminal(hub, tmp_path, *PAIR) as shown:
        seen = shown.read(until="Download?")
        assert all(part in seen for part in ("10.7 MB", "identical", "memory"))
        assert shown.ended_by(b"n\n", within=10) == 1
    assert 0 < hub.served <= 2 * WINDOW
    assert not (tmp_path / "hf").exists() and not (tmp_path / "config").exists()


# --- proposals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def family(hub, tmp_path) -> HubServer:
    hub_pairs.publish_family(hub, BIG, tmp_path)
    return hub


def test_drafts_are_proposed_for_a_target_alone_and_the_first_is_taken_with_yes(family, inside, tmp_path):
    found = pulled_here(*PAIR[:2])
    assert [proposal["name"] for proposal in found["proposals"]] == [NEAR, FAR]
    near, far = found["proposals"]
    assert 0.03 < near["ratio"] < 0.08 < far["ratio"] < 0.11 and near["verdict"] == far["verdict"] == "identical"
    assert not found["notes"], "errors about repositories that nobody named"
    assert 0 < family.served <= 8 * WINDOW
    hub_pairs.assert_nothing_kept(tmp_path)
    found = pulled_here(*PAIR[:2], "--yes")
    assert found["draft"]["reference"] == NEAR and hub_pairs.records(tmp_path) == [found["name"]]


@pytest.mark.slow
def test_a_proposal_is_chosen_by_its_number(family, tmp_path):
    with terminal(family, tmp_path, *PAIR[:2]) as shown:
        shown.read(until="Which draft?")
        (row,) = (line for line in shown.lines if FAR in line)
        shown.press(b"3\n")  # not passed over in silence
        shown.read(until="1 to 2")
        shown.press(f"{row.split()[0]}\n".encode())
        assert BIG_FILE in shown.read(until="Download?")
        shown.press(b"y\n")
        assert shown.ended() == 0
    assert hub_pairs.files(tmp_path) == ["Qwen2.5-Coder-0.5B-Instruct-Q8_0.gguf", BIG_FILE]
    (record,) = (tmp_path / "config" / "specdec" / "pulled").iterdir()
    assert json.loads(record.read_text())["draft"]["reference"] == FAR


def test_where_no_draft_is_known_the_target_is_pulled_alone(hub, inside, tmp_path):
    shown = call("pull", *PAIR[:2])
    assert shown.exit_code == 0 and "n-gram drafts" in shown.stderr and "--yes" in shown.stdout
    hub_pairs.assert_nothing_kept(tmp_path)
    found = pulled_here(*PAIR[:2], "--yes")
    assert found["draft"] is None and hub_pairs.records(tmp_path) == [found["name"]]
    assert "--drafter none" not in found["run"]
    assert "--drafter none" not in pulled_here("--target", DRAFT, "--yes")["run"]


def test_proposals_that_are_not_on_the_hub_are_not_blamed_on_the_user(family, inside):
    for name in (NEAR, FAR, "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"):
        family.repos.pop(name.partition(":")[0])
    found = pulled_here(*PAIR[:2])
    (note,) = found["notes"]
    assert not found["proposals"] and "cannot be read" in note and "--draft" not in note


# --- tokenizers that differ --------------------------------------------------------------------------------------


@pytest.fixture
def other(family) -> tuple[str, ...]:
    """A pair whose draft has other tokens."""
    return ("--target", f"{BIG}:Q4_K_M", "--draft", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0")


def test_a_draft_to_be_translated_is_pulled_only_if_that_is_said(family, other, inside, tmp_path):
    for sure in ((), ("--yes",)):
        refused_here(tmp_path, "tokenizers", "differ", "--translate", args=(*other, *sure), code=3)
    assert pulled_here(*other, "--translate")["check"]["verdict"] == "translatable"


@pytest.mark.slow
def test_on_a_terminal_the_answer_is_no_by_default(family, other, tmp_path):
    with terminal(family, tmp_path, *other) as shown:
        assert "usually slower" in shown.read(until="[y/N]")
        shown.press(b"\n")
        assert shown.ended() == 1
    hub_pairs.assert_nothing_kept(tmp_path)


# --- what goes wrong -----------------------------------------------------------------------------------------------


def target(name: str) -> tuple[str, ...]:
    return ("--target", name, *PAIR[2:])


def test_what_is_not_on_the_hub(hub, inside, tmp_path):
    for name, *says in (
        ("nobody/nothing:Q4_K_M", "no repository nobody/nothing", "HF_TOKEN"),
        (f"{BIG}:Q2_K", "no quantisation Q2_K", f"Available: {BIG}:Q4_K_M."),
    ):
        for args in (target(name), (*PAIR[:2], "--draft", name)):
            refused_here(tmp_path, *says, args=args)
    assert hub.served <= 2 * WINDOW and inside == []


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


@pytest.mark.parametrize("kind", ["gated", "private"])
def test_a_repository_that_is_not_for_all(hub, monkeypatch, inside, tmp_path, kind):
    hub.add(BIG, {BIG_FILE: TARGET}, **{kind: True})
    refused_here(tmp_path, kind, "HF_TOKEN", *([f"{hub.endpoint}/{BIG}"] if kind == "gated" else []))
    monkeypatch.setenv("HF_TOKEN", hub.token)
    if kind == "gated":
        refused_here(tmp_path, "gated", "Accept it")
        hub.granted.add(BIG)
    pulled_here()


def test_a_bad_token(hub, monkeypatch, inside, tmp_path):
    for token in ("hf_wrong", "hf_é", "a\nb"):
        monkeypatch.setenv("HF_TOKEN", token)
        refused_here(tmp_path, "HF_TOKEN")


def test_no_network_or_something_else_in_the_hubs_place(hub, monkeypatch, inside, tmp_path):
    for body in (b"<!doctype html><p>Log in to the wireless network", b'{"a": 1}'):
        with monkeypatch.context() as patch:
            patch.setattr("specdec_cli.pairs.hub.repository._listing", lambda _, body=body: body)
            refused_here(tmp_path, "HF_ENDPOINT")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    refused_here(tmp_path, "HF_ENDPOINT")
    assert inside == []  # waiting would not mend it


def test_a_disk_that_is_full_before(hub, inside, tmp_path):
    """A petabyte, of which there is the first megabyte."""
    file = hub.repos[BIG].commits[hub.repos[BIG].main][BIG_FILE]
    hub.repos[BIG].commits[hub.repos[BIG].main][BIG_FILE] = replace(file, size=10**15)
    refused_here(tmp_path, "1,000,00", "GB free", "HF_HOME")
    assert hub_pairs.weights(hub) == 0 and not (tmp_path / "hf").exists()


def test_a_disk_that_refuses(hub, inside, tmp_path, monkeypatch):
    """As FAT does a large file."""
    for number, says in ((errno.ENOSPC, "is full"), (errno.EFBIG, "cannot hold a file this large")):
        fail = Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr("specdec_cli.pairs.hub.download._fetch_until_broken", fail)
        refused_here(tmp_path, says, "HF_HOME")
    assert hub_pairs.weights(hub) == 0


def test_a_file_in_the_caches_place(hub, inside, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hub").write_text("in the way")
    refused_here(tmp_path, "HF_HOME")


def test_a_record_that_cannot_be_written(hub, inside, tmp_path):
    config = tmp_path / "config" / "specdec"
    config.mkdir(parents=True)
    (config / "pulled").write_text("in the way")
    result = hub_pairs.pull_here(*PAIR)
    assert result.exit_code in (1, 4) and "pulled" in complaint(result.stderr)[0]
    assert [path.name for path in config.rglob("*") if path.is_file()] == ["pulled"]  # no profile without its record
    (config / "pulled").unlink()
    assert hub_pairs.weights(hub) == 0, "found out before the gigabytes"
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
        assert_refused(hub_pairs.pull_here("mini"), 4, "is full")
    assert record.exists() and (damaged or record.read_text() == before)
    pulled_here("mini")


def test_files_that_would_lie_outside(hub, inside, tmp_path):
    names = ("../../../../x-Q4_K_M.gguf", "/tmp/x-Q4_K_M.gguf", "..\\..\\x-Q4_K_M.gguf")
    before = set(tmp_path.rglob("*"))
    for name in names:
        hub.add(BIG, {name: TARGET})
        refused_here(tmp_path, "no GGUF file", args=target(BIG))
        assert hub.served == 0 and set(tmp_path.rglob("*")) == before
    hub.add(BIG, {**dict.fromkeys(names, TARGET), BIG_FILE: TARGET})
    assert pulled_here(*PAIR)["target"]["files"][0]["name"] == BIG_FILE
    assert hub_pairs.files(tmp_path) == [SMALL_FILE, BIG_FILE]


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
