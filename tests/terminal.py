"""specdec on a pseudo-terminal, which shows what it shows a person, and whose settings can be looked at."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
from driver import SPECDEC

BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
"""Around each paint of the live view."""


class Terminal:
    """streams: those of specdec that are the terminal. under: a command that starts it, controlled by the terminal."""

    def __init__(self, *args, streams=("stdin", "stdout", "stderr"), under=(), size=(40, 160), env=None):
        self.main, self.side = pty.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(self.side)
        self.screen = pyte.Screen(*reversed(size))
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [*under, *SPECDEC, *map(str, args)],
            **{**pipes, **dict.fromkeys(streams, self.side)},
            env={**os.environ, "TERM": "xterm", **(env or {})},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if under else None,  # noqa: PLW1509
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for end in (self.main, self.side):
            os.close(end)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines).rstrip()

    def read(self, until=None, seconds=60):
        """Take in what is shown, until a text stands or stood on the screen, or the process has ended.

        until: or a function, which is asked. What the live view paints counts once all of it has come.
        """
        deadline, begin = time.monotonic() + seconds, len(self.raw)

        def there():
            return until() if callable(until) else until in self.text or until.encode() in self.raw[begin:]

        while until is None or self.raw.rfind(BEGIN) > self.raw.rfind(END) or not there():
            ended = self.process.poll() is not None
            if not self.take() and ended:
                assert until is None, f"no {until!r} in\n{self.text}"
                break
            assert time.monotonic() < deadline, f"waits for {until!r} in\n{self.text}"
        return self.text

    def take(self) -> bool:
        """Take in what is shown now, if anything is."""
        if not select.select([self.main], [], [], 0.02)[0]:
            return False
        piece = os.read(self.main, 65536)
        self.raw += piece
        self.stream.feed(piece)
        return True

    def press(self, keys):
        os.write(self.main, keys)

    def ended(self):
        """The exit code; the terminal must be as it was before."""
        self.read()
        assert b"Traceback" not in self.raw, self.text
        assert termios.tcgetattr(self.side) == self.before
        for on, off in ((b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[?1049h", b"\x1b[?1049l")):
            assert self.raw.rfind(off) >= self.raw.rfind(on), "the cursor is gone, or a screen is left"
        return self.process.wait(20)

    def ended_by(self, send, within=10.0):
        """The exit code after a signal, or a key, which must come soon."""
        started = time.monotonic()
        if isinstance(send, bytes):
            self.press(send)
        else:
            self.process.send_signal(send)
        code = self.ended()
        assert time.monotonic() - started < within
        return code

    def interrupted_at_a_question(self, press):
        """The exit code: a Ctrl-C between the question's appearance and the waiting for an answer has no effect."""
        for _ in range(20):
            press()
            try:
                self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
            break
        code = self.ended()
        return 130 if code == -signal.SIGINT else code  # interrupted once more while Python was ending
