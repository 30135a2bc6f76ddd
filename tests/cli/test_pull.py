"""`specdec pull` as a person uses it, against a Hub on loopback through the real huggingface_hub."""

from __future__ import annotations

import json
import re
import signal
import struct
from pathlib import Path

import ggufs
import hub_pairs
import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, run, told
from hub_pairs import BIG, BIG_FILE, FAR, NAME, NEAR, PAIR, SIZES, SMALL, SMALL_FILE, WINDOW, pulled_here
from hub_server import HubServer
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
    hub_pairs.refused_here(tmp_path, "token 300", code=3)
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
    hub_pairs.refused_here(tmp_path, "HF_HUB_OFFLINE", BIG)
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
        shown.read(until="0:00:0")
        (big,) = (line for line in shown.lines if line.startswith(BIG_FILE) and "MB/s" in line)
        assert re.search(r" [1-9]\.\d/9\.6 MB +\d+\.\d MB/s +0:00:0\d", big)
        assert any(line.startswith(SMALL_FILE) and "1.1 MB" in line for line in shown.lines)
        assert shown.ended_by(signal.SIGINT, within=10) == 130 and "interrupted" in shown.text
    hub_pairs.assert_nothing_kept(tmp_path)
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


# --- tokenizers that differ --------------------------------------------------------------------------------------


@pytest.fixture
def other(family) -> tuple[str, ...]:
    """A pair whose draft has other tokens."""
    return ("--target", f"{BIG}:Q4_K_M", "--draft", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0")


def test_a_draft_to_be_translated_is_pulled_only_if_that_is_said(family, other, inside, tmp_path):
    for sure in ((), ("--yes",)):
        hub_pairs.refused_here(tmp_path, "tokenizers", "differ", "--translate", args=(*other, *sure), code=3)
    assert pulled_here(*other, "--translate")["check"]["verdict"] == "translatable"


@pytest.mark.slow
def test_on_a_terminal_the_answer_is_no_by_default(family, other, tmp_path):
    with terminal(family, tmp_path, *other) as shown:
        assert "usually slower" in shown.read(until="[y/N]")
        shown.press(b"\n")
        assert shown.ended() == 1
    hub_pairs.assert_nothing_kept(tmp_path)
