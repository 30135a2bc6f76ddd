"""Single keys from a terminal, whose settings come back whatever happens."""

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from specdec_cli.decoding.types import Event, Prefill

_POLL_S = 0.05
_NEXT = {b" ", b"\r", b"\n", b"\x1b[C", b"\x1bOC"}
_LEAVE = {b"q", b"Q", b"\x03", b"\x04", b""}
_KEY = re.compile(rb"\x1b\[[\d;]*[@-~]|\x1bO.|.", re.DOTALL)


@contextmanager
def keyboard(
    interrupted: Callable[[], bool], around_stop: Callable[[], AbstractContextManager[object]]
) -> Iterator[Callable[[Event], bool]]:
    """Keys without Enter and without echo. The terminal's settings come back at the end, however it comes.

    interrupted: whether Ctrl-C or SIGTERM has come. around_stop: entered while Ctrl-Z stops the process. The signals
    that would end or stop the process restore the settings first.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    pending: list[bytes] = []
    stops: list[int] = []

    def wait(event: Event) -> bool:
        while not isinstance(event, Prefill) and not interrupted():
            if stops:
                suspend()
            if not pending and select.select([fd], [], [], _POLL_S)[0]:
                pending.extend(_KEY.findall(os.read(fd, 1024)) or [b""])  # b"": the terminal has hung up
            if pending and (key := pending.pop(0)) in _NEXT | _LEAVE:
                return key in _NEXT
        return not interrupted()

    def suspend() -> None:
        stops.clear()
        with around_stop():
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
            os.kill(os.getpid(), signal.SIGSTOP)
            tty.setcbreak(fd, termios.TCSADRAIN)

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    # Not at once: the signal may have come in the middle of a write.
    handlers = ((signal.SIGTSTP, lambda number, _: stops.append(number)), (signal.SIGHUP, end), (signal.SIGQUIT, end))
    old = {number: signal.signal(number, handler) for number, handler in handlers}
    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
        for number, handler in old.items():
            signal.signal(number, handler)
