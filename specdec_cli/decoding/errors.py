"""The errors that users see: what went wrong, what to do about it, and the exit code for scripts."""

from __future__ import annotations

import signal


class SpecdecError(Exception):
    """A known failure. `str(error)` says what happened in one line; `hint` says what to do."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(SpecdecError):
    """The command line or a settings file asks for something impossible, or names something that doesn't exist."""

    exit_code = 2


class IncompatiblePair(SpecdecError):
    """Draft and target do not share a tokenizer."""

    exit_code = 3


class DownloadError(SpecdecError):
    """The Hub, the network or the disk failed."""

    exit_code = 4


class Interrupted(Exception):
    """The user stopped a forward pass or a load. Not an error. exit_code: tells which signal did."""

    exit_code = 130


ENDING_SIGNALS = {getattr(signal, name, signal.SIGINT) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}
"""The signals that end a command, as far as this system has them."""


def obeyed_signals() -> list[signal.Signals]:
    """Those that end this command: not what its parent ignores, such as SIGHUP under nohup."""
    return [number for number in sorted(ENDING_SIGNALS) if signal.getsignal(number) is not signal.SIG_IGN]


_LONGEST_REASON = 200  # characters


def reason_of(error: BaseException) -> str:
    """An exception's message for a note: one short line of printable characters. Never fails."""
    name = type(error).__name__
    try:
        message = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException:
        message = ""  # its __str__ raises, too
    text = message if message and isinstance(error, Exception) else f"{name}: {message}" if message else name
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:_LONGEST_REASON])
