"""Calls that servers take part in: what is lost, what takes long. In processes of their own: a loss is for good."""

import subprocess
import sys
import textwrap

import pytest
from driver import TARGET
from rpc import rpc_servers


def ran(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_what_goes_on_after_ctrl_c_is_waited_for_by_the_next_call():
    """A slow pass is no lost server."""
    found = ran(
        """
        import time
        from specdec_cli.decoding.errors import Interrupted
        from specdec_cli.llama.interrupt import Interrupt
        from specdec_cli.llama.rpc import calls

        interrupt, remote = Interrupt(), calls()
        interrupt.set()
        began = time.monotonic()
        try:
            remote.call(time.sleep, 2.0, interrupt=interrupt)
        except Interrupted:
            print("interrupted" if time.monotonic() - began < 1.8 else "late")
        interrupt.clear()
        print(remote.call(abs, -7), time.monotonic() - began > 1.9)
        """
    )
    assert found == ["interrupted", "7", "True"]


def test_what_never_ends_is_lost_once_for_all():
    found = ran(
        """
        import time
        from specdec_cli.decoding.errors import SpecdecError
        from specdec_cli.llama.rpc import calls

        remote = calls()
        remote.add("10.0.0.1:5")
        for seconds in (0.3, 5.0):
            began = time.monotonic()
            try:
                remote.call(time.sleep, 30.0, allowed_s=seconds)
            except SpecdecError as error:
                print("10.0.0.1:5" in str(error), time.monotonic() - began < 1.0)
        """
    )
    assert found == ["True"] * 4


@pytest.mark.slow
def test_a_server_that_dies_after_it_was_given_up_does_not_end_the_process():
    """What ggml says then comes from a thread that nobody waits for."""
    with rpc_servers(1) as (server,):
        found = ran(
            """
            import os, signal, sys, time
            from specdec_cli import SamplingParams, load
            from specdec_cli.decoding.errors import SpecdecError

            target, address, pid = sys.argv[1:]
            with load(target=target, rpc=address, threads=1) as engine:
                session = engine.session()
                session.generate("def f(", SamplingParams(max_tokens=8))
                os.kill(int(pid), signal.SIGSTOP)
                try:
                    session.generate("def g(", SamplingParams(max_tokens=8))
                except SpecdecError as error:
                    print("has not answered" in str(error))
                os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.5)
            print("alive")
            """,
            TARGET,
            server.address,
            server.process.pid,
        )
    assert found == ["True", "alive"]


@pytest.mark.slow
def test_a_text_cannot_be_kept_where_its_server_is_gone(tmp_path):
    with rpc_servers(1) as (server,):
        found = ran(
            """
            import os, signal, sys
            from pathlib import Path
            from specdec_cli import SamplingParams, load
            from specdec_cli.decoding.errors import SpecdecError

            target, address, pid, folder = sys.argv[1:]
            with load(target=target, rpc=address, threads=1) as engine:
                session = engine.session()
                session.generate("def f(", SamplingParams(max_tokens=8))
                context = session.models.target.opened
                context.save(Path(folder) / "kept")
                os.kill(int(pid), signal.SIGKILL)
                try:
                    context.save(Path(folder) / "again")
                except SpecdecError as error:
                    print("gone" in str(error))
            """,
            TARGET,
            server.address,
            server.process.pid,
            tmp_path,
        )
    assert found == ["True"] and (tmp_path / "kept").exists() and not (tmp_path / "again").exists()
