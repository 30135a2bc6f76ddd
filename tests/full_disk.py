"""A disk that takes files of so many bytes and no more."""

import os
import resource
import sys
import threading
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(most_bytes: int):
    """While entered, no file of this process gets larger; Python ignores the signal, and gets an OSError."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with pytest.MonkeyPatch.context() as patch:  # a module's bytecode would be cut, and never import again
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def main(most_bytes: int, args: list[str]) -> None:
    """A command, in a child. What it prints goes elsewhere until it ends: that is not what the disk is for."""
    from fuzzing_child import command

    printed: dict[int, list[bytes]] = {1: [], 2: []}
    kept = {number: os.dup(number) for number in printed}
    readers = [_collect(number, chunks) for number, chunks in printed.items()]
    try:
        with full_disk(most_bytes):
            command(args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in kept.items():
            os.dup2(old, number)
        for reader in readers:
            reader.join(5)
        for number, chunks in printed.items():
            os.write(number, b"".join(chunks))


def _collect(number: int, chunks: list[bytes]) -> threading.Thread:
    """Let what is written to a stream come through a pipe."""
    source, goal = os.pipe()
    os.dup2(goal, number)
    os.close(goal)

    def read() -> None:
        while chunk := os.read(source, 1 << 16):
            chunks.append(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader
