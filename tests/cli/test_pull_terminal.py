"""`specdec pull` on a terminal: what it asks, what it shows, and how it stops. And the drafts it proposes."""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path

import hub_pairs
import pytest
from driver import call
from hub_pairs import BIG, BIG_FILE, FAR, NAME, NEAR, PAIR, SIZES, SMALL_FILE, WINDOW, begun, content, pulled_here
from hub_server import HubServer
from terminal import Terminal


def terminal(hub: HubServer, folder: Path, *args: object) -> Terminal:
    """A pull on a terminal."""
    return Terminal("pull", *args, env=hub_pairs.environment(hub, folder))


@pytest.mark.parametrize(
    ("send", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_download_shown_and_interrupted(hub, tmp_path, send, code):
    hub.slow(content(hub, BIG_FILE), 3_000_000)
    with terminal(hub, tmp_path, *PAIR, "--yes") as shown:
        shown.read(until="0:00:0")
        (big,) = (line for line in shown.lines if line.startswith(BIG_FILE) and "MB/s" in line)
        assert re.search(r" [1-9]\.\d/9\.6 MB +\d+\.\d MB/s +0:00:0\d", big)
        assert any(line.startswith(SMALL_FILE) and "1.1 MB" in line for line in shown.lines)
        assert shown.ended_by(send, within=10) == code and (code == 143 or "interrupted" in shown.text)
    hub_pairs.assert_nothing_kept(tmp_path)
    there = begun(tmp_path)
    assert there >= 1 << 20
    if code == 143:
        return
    hub.faults.clear()
    hub.reset()
    with terminal(hub, tmp_path, *PAIR) as shown:
        assert f"{there / SIZES[0]:.0%} here" in shown.read(until="Download?")
        shown.press(b"\n")  # yes
        assert shown.ended() == 0
    assert hub_pairs.weights(hub, BIG_FILE) == SIZES[0] - there
    for name in (BIG_FILE, SMALL_FILE):
        assert any(line.startswith(name) and line.endswith("done") for line in shown.lines)
    assert f"specdec run -p {NAME}" in shown.text


@pytest.mark.parametrize("answer", [b"n\n", pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_download_that_is_refused(hub, tmp_path, answer):
    with terminal(hub, tmp_path, *PAIR) as shown:
        seen = shown.read(until="Download?")
        assert all(part in seen for part in ("10.7 MB", "identical", "memory"))
        if answer is signal.SIGINT:
            assert shown.interrupted_at_a_question(partial(shown.process.send_signal, answer)) == 130
        else:
            assert shown.ended_by(answer, within=10) == 1
    assert 0 < hub.served <= 2 * WINDOW
    assert not (tmp_path / "hf").exists() and not (tmp_path / "config").exists()


@pytest.mark.slow
def test_interrupted_while_headers_are_read(hub, tmp_path):
    hub.stall("/api/models", seconds=60)
    with terminal(hub, tmp_path, *PAIR) as shown:
        shown.read(until="reading headers")
        hub_pairs.wait_until(lambda: hub.requests, shown.process)
        assert shown.ended_by(signal.SIGINT, within=10) == 130
        assert [line for line in shown.lines if line] == ["specdec: interrupted"]
    hub_pairs.assert_nothing_kept(tmp_path)


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
        for answer in (b"0\n", b"3\n"):  # not passed over in silence
            shown.press(answer)
            shown.read(until="1 to 2")
        shown.press(f"{row.split()[0]}\n".encode())
        assert BIG_FILE in shown.read(until="Download?") and shown.raw.count(b"1 to 2") == 2
        shown.press(b"y\n")
        assert shown.ended() == 0
    assert hub_pairs.files(tmp_path) == ["Qwen2.5-Coder-0.5B-Instruct-Q8_0.gguf", BIG_FILE]
    (record,) = (tmp_path / "config" / "specdec" / "pulled").iterdir()
    assert json.loads(record.read_text())["draft"]["reference"] == FAR


def test_a_possible_draft_that_is_damaged_does_not_hide_the_others(family, inside, tmp_path):
    family.add(NEAR.partition(":")[0], {"Qwen2.5-0.5B-Instruct-Q4_K_M.gguf": b"no model at all" * 100})
    found = pulled_here(*PAIR[:2])
    assert [proposal["name"] for proposal in found["proposals"]] == [FAR]


def test_where_no_draft_is_known_the_target_is_pulled_alone(hub, inside, tmp_path):
    shown = call("pull", *PAIR[:2])
    assert shown.exit_code == 0 and "n-gram drafts" in shown.stderr and "--yes" in shown.stdout
    hub_pairs.assert_nothing_kept(tmp_path)
    found = pulled_here(*PAIR[:2], "--yes")
    assert found["draft"] is None and hub_pairs.records(tmp_path) == [found["name"]]
    assert "--drafter none" not in found["run"]


def test_a_target_alone_takes_one_question(hub, tmp_path):
    with terminal(hub, tmp_path, *PAIR[:2]) as shown:
        seen = shown.read(until="[Y/n]")
        assert "n-gram drafts" in seen and BIG_FILE in seen and "Download?" in seen
        shown.press(b"\n")
        assert shown.ended() == 0
    assert hub_pairs.files(tmp_path) == [BIG_FILE]


def test_where_no_draft_is_known_that_of_ones_own_profile_is_proposed(hub, inside, tmp_path):
    assert pulled_here(*PAIR[:2]) == {"proposals": [], "notes": []}
    hub_pairs.own_profile("mine", f"target: {PAIR[1]}\ndraft: {PAIR[3]}\n")
    hub_pairs.own_profile("broken", "target: [")
    assert [proposal["name"] for proposal in pulled_here(*PAIR[:2])["proposals"]] == [PAIR[3]]


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


@pytest.mark.slow
def test_a_pair_whose_files_are_here_is_asked_about_too(family, other, tmp_path):
    assert hub_pairs.pulled(family, tmp_path, *other, "--translate")["check"]["verdict"] == "translatable"
    (record,) = (tmp_path / "config" / "specdec" / "pulled").iterdir()
    record.unlink()
    with terminal(family, tmp_path, *other) as shown:
        shown.read(until="Use this pair? [y/N]")
        shown.press(b"\n")
        assert shown.ended() == 1
    assert hub_pairs.records(tmp_path) == []
