"""Devices such as /dev/zero, for commands that read and write whatever they are given."""

import os
import stat
from pathlib import Path

NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "urandom": (1, 9)}
"""Linux's."""


def device(folder: Path, name: str) -> Path:
    """A device. Root gets a node of its own: a command that goes wrong must not replace the machine's."""
    own = folder / name
    if os.geteuid():
        return Path("/dev") / name
    if not own.exists():
        os.mknod(own, stat.S_IFCHR | 0o666, os.makedev(*NUMBERS[name]))
    return own
