"""The errors a user can meet: what went wrong, what to do about it, and the exit code for scripts."""

from __future__ import annotations


class SpecdecError(Exception):
    """A known failure. `str(error)` says what happened in one line; `hint` says what to do."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(SpecdecError):
    """The command line or a settings file asks for something impossible, or names something that is not there."""

    exit_code = 2


class IncompatiblePair(SpecdecError):
    """Draft and target do not share a tokenizer."""

    exit_code = 3


class DownloadError(SpecdecError):
    """The Hub, the network or the disk did not deliver."""

    exit_code = 4


class Interrupted(Exception):
    """The user stopped a forward pass or a load. Not an error."""
