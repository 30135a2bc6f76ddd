import os
import signal
import socket
import time

from specdec_cli.llama.interrupt import Interrupt


def test_what_is_cleared_stays_cleared(monkeypatch):
    """The thread that reads the signal's byte may be late."""
    late = []

    class Late(socket.socket):
        def recv(self, *args):
            received = super().recv(*args)
            time.sleep(0.1)
            late.append(received)
            return received

    monkeypatch.setattr(socket, "socket", Late)
    with (interrupt := Interrupt()):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.exit_code == 130
    interrupt.clear()
    time.sleep(0.3)
    assert not interrupt.is_set() and interrupt.exit_code == 0
    assert late == [bytes([signal.SIGINT]), b""]
