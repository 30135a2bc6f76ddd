"""A disk that takes files of so many bytes and no more."""

import resource
import sys
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
