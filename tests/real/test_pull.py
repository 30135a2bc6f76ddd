"""`specdec pull` of a real pair of 1.6 GB from a Hub on loopback, killed on the way, and the pair at work."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import PROMPT, specdec
from hub_pairs import assert_nothing_kept, begin, begun, environment, files, of_header, pull, wait_until, weights
from hub_server import HubServer

from .models import QWEN, QWEN_SMALL

PAIR = ("--target", f"{QWEN.repo}:Q4_K_M", "--draft", f"{QWEN_SMALL.repo}:Q4_K_M")
PROFILE = "qwen2.5-coder-1.5b"
MIDDLE = 600_000_000
PATIENCE = 180
"""Seconds, for what moves a gigabyte."""


@pytest.fixture
def hub(qwen, qwen_small) -> Iterator[HubServer]:
    """The makers' two repositories, each with another quantisation beside the one that is asked for."""
    with HubServer() as hub:
        for model, path in ((QWEN, qwen), (QWEN_SMALL, qwen_small)):
            other = model.file.replace("q4_k_m", "q8_0")
            hub.add(model.repo, {model.file: path, other: b"GGUF, or so it says", "README.md": b"# Qwen\n"})
        yield hub


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """What is pulled is too large to be left lying about."""
    yield tmp_path
    shutil.rmtree(tmp_path / "hf", ignore_errors=True)


def test_a_real_pair_is_pulled_though_it_is_killed_on_the_way(hub, folder, qwen, qwen_small):
    sizes = qwen.stat().st_size, qwen_small.stat().st_size

    def asks_for_weights(line: str) -> bool:
        # Called while the log is locked, hence not `hub.requests`.
        asked = [request for request in hub.log if request.path.endswith(QWEN.file)]
        return line.startswith("GET /cdn/") and line.endswith(QWEN.file) and not of_header(asked[-1])

    hub.stall(asks_for_weights, seconds=PATIENCE, after=MIDDLE)
    process = begin(hub, folder, *PAIR)
    wait_until(lambda: begun(folder) > MIDDLE - (32 << 20), process, PATIENCE)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert_nothing_kept(folder)
    there = begun(folder)
    assert 0 < there <= MIDDLE

    hub.reset()
    done = pull(hub, folder, *PAIR, "--json", timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["check"]["verdict"] == "identical"
    assert found["downloaded"] == sum(sizes) - there
    assert (weights(hub, QWEN.file), weights(hub, QWEN_SMALL.file)) == (sizes[0] - there, sizes[1])
    assert (files(folder), begun(folder)) == (sorted([QWEN.file, QWEN_SMALL.file]), 0)
    for model, role in ((QWEN, "target"), (QWEN_SMALL, "draft")):
        with Path(found["paths"][role]).open("rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
        assert digest.hexdigest() == model.sha256

    # By the name that pull gave it, and by that of the bundled profile, without asking the Hub for anything.
    hub.reset()
    env = environment(hub, folder)
    checked = specdec("check", PROFILE, "--json", env=env, timeout=60)
    assert json.loads(checked.stdout)["target"]["path"] == found["paths"]["target"]
    answers = []
    for name in (found["name"], PROFILE):
        args = ("-p", name, "-n", 8, "-k", 2, "--temp", 0, "--raw", "--json")
        done = specdec("run", PROMPT, *args, env=env, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr.decode()
        answers.append(json.loads(done.stdout)["tokens"])
    assert len(answers[0]) == 8 and answers[0] == answers[1]
    assert hub.requests == []
