"""`specdec pull` on a terminal: what it asks, what it shows, and how it stops. And the drafts it proposes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hub_pairs
import pyte
import pytest
from driver import press_until_it_ends, read_terminal
from hub_pairs import (
    BIG,
    BIG_FILE,
    FAR,
    NAME,
    NEAR,
    PAIR,
    SIZES,
    SMALL_FILE,
    WINDOW,
    assert_nothing_kept,
    begin,
    begun,
    content,
    files,
    pulled_here,
    records,
    refused_here,
    weights,
)
from hub_server import HubServer

WIDTH = 160


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as hub:
        yield hub_pairs.publish(hub)


@pytest.fixture
def inside(monkeypatch, hub, tmp_path) -> None:
    """For what needs no process of its own."""
    hub_pairs.here(monkeypatch, hub, tmp_path)


@contextmanager
def terminal(hub: HubServer, folder: Path, *args: object):
    """A pull on a terminal."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    process = begin(hub, folder, *args, stdin=side, stdout=side, stderr=side)
    os.close(side)
    try:
        yield main, process
    finally:
        process.kill()
        process.wait()
        os.close(main)


def shown(seen: bytes) -> list[str]:
    """What stands on the terminal after all that."""
    screen = pyte.Screen(WIDTH, 40)
    pyte.ByteStream(screen).feed(seen)
    return [line.rstrip() for line in screen.display]


@pytest.mark.parametrize(("send", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_download_shown_and_interrupted(hub, tmp_path, send, code):
    hub.slow(content(hub, BIG_FILE), 3_000_000)
    with terminal(hub, tmp_path, *PAIR, "--yes") as (main, process):
        seen = read_terminal(main, until=b"0:00:0")
        lines = shown(seen)
        (big,) = (line for line in lines if line.startswith(BIG_FILE) and "MB/s" in line)
        assert re.search(r" [1-9]\.\d/9\.6 MB +\d+\.\d MB/s +0:00:0\d", big)
        assert any(line.startswith(SMALL_FILE) and "1.1 MB" in line for line in lines)
        process.send_signal(send)
        seen += read_terminal(main)
        assert process.wait(10) == code
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")  # the cursor is there again
    assert b"Traceback" not in seen and (code == 143 or b"interrupted" in seen)
    assert_nothing_kept(tmp_path)
    there = begun(tmp_path)
    assert there >= 1 << 20

    if code == 143:
        return
    hub.faults.clear()
    hub.reset()
    with terminal(hub, tmp_path, *PAIR) as (main, process):
        seen = read_terminal(main, until=b"Download?")
        assert f"{there / SIZES[0]:.0%} here" in "\n".join(shown(seen))
        os.write(main, b"\n")  # yes
        seen += read_terminal(main)
        assert process.wait(10) == 0
    assert weights(hub, BIG_FILE) == SIZES[0] - there
    lines = shown(seen)
    assert all(
        any(line.startswith(name) and line.endswith("done") for line in lines) for name in (BIG_FILE, SMALL_FILE)
    )
    assert any(f"specdec run -p {NAME}" in line for line in lines)


@pytest.mark.parametrize("answer", ["n\n", "interrupt"])
def test_a_download_that_is_not_wanted(hub, tmp_path, answer):
    with terminal(hub, tmp_path, *PAIR) as (main, process):
        seen = read_terminal(main, until=b"Download?")
        assert all(part in seen for part in (b"10.7 MB", b"identical", b"memory"))
        if answer == "interrupt":
            press_until_it_ends(process, lambda: process.send_signal(signal.SIGINT))
        else:
            os.write(main, answer.encode())
        seen = read_terminal(main)
        # -2: interrupted once more while Python was ending
        assert process.wait(10) in ((1,) if answer == "n\n" else (130, -2)) and b"Traceback" not in seen
    assert 0 < hub.served <= 2 * WINDOW
    assert not (tmp_path / "hf").exists() and not (tmp_path / "config").exists()


def test_interrupted_while_headers_are_read(hub, tmp_path):
    hub.stall("/api/models", seconds=60)
    with terminal(hub, tmp_path, *PAIR) as (main, process):
        read_terminal(main, until=b"reading headers")
        hub_pairs.wait_until(lambda: hub.requests, process)
        process.send_signal(signal.SIGINT)
        seen = read_terminal(main)
        assert process.wait(10) == 130
    assert [line for line in shown(seen) if line] == ["specdec: interrupted"]
    assert_nothing_kept(tmp_path)


# --- proposals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def family(hub, tmp_path) -> HubServer:
    hub_pairs.publish_family(hub, BIG, tmp_path)
    return hub


def test_drafts_are_proposed_for_a_target_alone(family, inside, tmp_path):
    found = pulled_here(*PAIR[:2])
    assert [proposal["name"] for proposal in found["proposals"]] == [NEAR, FAR]
    near, far = found["proposals"]
    assert 0.03 < near["ratio"] < 0.08 < far["ratio"] < 0.11 and near["verdict"] == far["verdict"] == "identical"
    assert any("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF" in note for note in found["notes"])
    assert 0 < family.served <= 8 * WINDOW
    assert_nothing_kept(tmp_path)


def test_the_first_proposal_is_taken_with_yes(family, inside, tmp_path):
    assert pulled_here(*PAIR[:2], "--yes", "--dry-run")["draft"]["name"] == NEAR
    found = pulled_here(*PAIR[:2], "--yes")
    assert found["draft"]["reference"] == NEAR and records(tmp_path) == [found["name"]]


def test_a_proposal_is_chosen_by_its_number(family, tmp_path):
    with terminal(family, tmp_path, *PAIR[:2]) as (main, process):
        seen = read_terminal(main, until=b"Which draft?")
        lines = shown(seen)
        (row,) = (line for line in lines if FAR in line)
        os.write(main, f"{row.split()[0]}\n".encode())
        assert BIG_FILE.encode() in read_terminal(main, until=b"Download?")
        os.write(main, b"y\n")
        read_terminal(main)
        assert process.wait(10) == 0
    assert files(tmp_path) == ["Qwen2.5-Coder-0.5B-Instruct-Q8_0.gguf", BIG_FILE]
    (record,) = (tmp_path / "config" / "specdec" / "pulled").iterdir()
    assert json.loads(record.read_text())["draft"]["reference"] == FAR


def test_a_number_that_is_no_proposals(family, tmp_path):
    """It is not passed over in silence."""
    with terminal(family, tmp_path, *PAIR[:2]) as (main, _):
        read_terminal(main, until=b"Which draft?")
        for answer in (b"0\n", b"3\n"):
            os.write(main, answer)
            assert b"1 to 2" in read_terminal(main, until=b"1 to 2")
    assert_nothing_kept(tmp_path)


def test_a_possible_draft_that_is_damaged_does_not_hide_the_others(family, inside, tmp_path):
    family.add(NEAR.partition(":")[0], {"Qwen2.5-0.5B-Instruct-Q4_K_M.gguf": b"no model at all" * 100})
    found = pulled_here(*PAIR[:2])
    assert [proposal["name"] for proposal in found["proposals"]] == [FAR]
    assert any(NEAR in note for note in found["notes"])


def test_no_draft_is_known(hub, inside, tmp_path):
    refused_here(tmp_path, "no draft", "gpt-2", "--draft", args=PAIR[:2], code=1)


def test_the_draft_of_ones_own_profile_is_proposed(hub, inside, tmp_path):
    hub_pairs.own_profile("mine", f"target: {PAIR[1]}\ndraft: {PAIR[3]}\n")
    hub_pairs.own_profile("broken", "target: [")
    assert [proposal["name"] for proposal in pulled_here(*PAIR[:2])["proposals"]] == [PAIR[3]]
