"""Calls that servers take part in: what is lost, what takes long."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import pytest
from driver import TARGET
from rpc import rpc_servers

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import remote_calls, undeclared
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.remote_calls import RemoteCalls

BEGUN = """
import os, signal, sys, time
from pathlib import Path
from specdec_cli import SamplingParams, load
from specdec_cli.decoding.errors import SpecdecError

target, address, pid, folder = sys.argv[1:]
engine = load(target=target, rpc=address, threads=1)
session = engine.session()
session.generate("def f(", SamplingParams(max_tokens=8))
"""


def ran_with_a_server(script, folder):
    """In a process of its own: a loss is for good."""
    with rpc_servers(1) as (server,):
        arguments = map(str, (TARGET, server.address, server.process.pid, folder))
        done = subprocess.run(
            [sys.executable, "-c", BEGUN + textwrap.dedent(script), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def remote(monkeypatch):
    """As if there were servers; how this process ends is none of its business."""
    monkeypatch.setattr(undeclared, "call", lambda *_: None)
    return RemoteCalls()


@pytest.mark.slow
def test_what_goes_on_after_ctrl_c_is_waited_for_by_the_next_call(remote):
    """A slow pass is no lost server."""
    interrupt, began = Interrupt(), monotonic()
    interrupt.set()
    with pytest.raises(Interrupted):
        remote.call(sleep, 2.0, interrupt=interrupt)
    assert monotonic() - began < 1.8
    interrupt.clear()
    assert remote.call(abs, -7) == 7 and monotonic() - began > 1.9


def test_what_never_ends_is_lost_once_for_all(remote):
    for _ in range(2):  # the first time, it could not be reached
        remote.add("10.0.0.1:5")
    for seconds in (0.3, 5.0):
        began = monotonic()
        with pytest.raises(SpecdecError, match=r"the server 10\.0\.0\.1:5 has"):
            remote.call(sleep, 30.0, allowed_s=seconds)
        assert monotonic() - began < 4.0


def test_a_call_has_its_whole_time_however_many_threads_wait(remote, monkeypatch):
    """By a clock that only calls move on, so that it makes no difference how busy this machine is."""
    clock = [0.0]
    monkeypatch.setattr(remote_calls, "monotonic", lambda: clock[0])

    def work():
        clock[0] += 0.1
        sleep(0.05)  # the callers look at the clock

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(lambda _: remote.call(work, allowed_s=0.4), range(6))] == [None] * 6


@pytest.mark.slow
def test_a_server_that_dies_after_it_was_given_up_does_not_end_the_process(tmp_path):
    """What ggml says then comes from a thread that nobody waits for."""
    found = ran_with_a_server(
        """
        os.kill(int(pid), signal.SIGSTOP)
        try:
            session.generate("def g(", SamplingParams(max_tokens=8))
        except SpecdecError as error:
            print("has not answered" in str(error))
        os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.5)
        engine.close()
        print("alive")
        """,
        tmp_path,
    )
    assert found == ["True", "alive"]


@pytest.mark.slow
def test_a_text_cannot_be_kept_where_its_server_is_gone(tmp_path):
    found = ran_with_a_server(
        """
        context = session.models.target.open_kv
        context.save(Path(folder) / "kept")
        os.kill(int(pid), signal.SIGKILL)
        try:
            context.save(Path(folder) / "again")
        except SpecdecError as error:
            print("gone" in str(error))
        engine.close()
        """,
        tmp_path,
    )
    assert found == ["True"] and (tmp_path / "kept").exists() and not (tmp_path / "again").exists()
