import os
import signal
import time

from specdec_cli.llama.interrupt import Interrupt


def test_what_is_cleared_stays_cleared(monkeypatch):
    """The thread that reads the signal's byte may be late."""
    read = os.read

    def late(*args):
        received = read(*args)
        time.sleep(0.1)
        return received

    monkeypatch.setattr(os, "read", late)
    with (interrupt := Interrupt()):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.exit_code == 130
    interrupt.clear()
    time.sleep(0.3)
    assert not interrupt.is_set() and interrupt.exit_code == 0
