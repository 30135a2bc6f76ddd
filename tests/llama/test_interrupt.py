import os
import signal
import socket
import time

import pytest
from hub_pairs import wait_until

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.llama.interrupt import Interrupt


def test_what_is_cleared_stays_cleared(monkeypatch):
    """The thread that reads the signal's byte may be late."""
    late = []

    class Late(socket.socket):
        def recv(self, *args):
            received = super().recv(*args)
            time.sleep(0.05)
            late.append(received)
            return received

    monkeypatch.setattr(socket, "socket", Late)
    with (interrupt := Interrupt()):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.exit_code == 130
    interrupt.clear()
    wait_until(lambda: len(late) == 2)
    assert not interrupt.is_set() and interrupt.exit_code == 0
    assert late == [bytes([signal.SIGINT]), b""]


def test_the_exit_code_is_known_before_python_handles_the_signal():
    """The thread that reads the signal's byte may be first, and an answer ends at once."""
    with pytest.raises(Interrupted) as ended, (interrupt := Interrupt()):
        interrupt._writer.send(bytes([signal.SIGHUP]))
        while not interrupt.is_set():
            time.sleep(0.001)
        assert interrupt.exit_code == 129
        raise Interrupted
    assert ended.value.exit_code == 129 and Interrupted().exit_code == 130
