"""What the tests of `make fuzz` share: how many cases, from which seed, and specdec in a child that may die of them."""

import functools
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from children import command, enter
from hostile import obeyed

# Read here, not in a test: tests run without specdec's own settings.
SEED = os.environ.get("SPECDEC_FUZZ_SEED", "1")
SCALE = float(os.environ.get("SPECDEC_FUZZ_SCALE", "1"))

EXIT_CODES = {0, 1, 2, 3, 4, 130}
MAX_BYTES = 300 << 20
"""Of memory beyond what Python, specdec and llama.cpp take before the first model is read."""
MAX_IN_CHILDREN = 1200 << 20
"""The limit of a trial load, 1 GiB, and what it begins with."""
PATIENCE = 4
"""How many times longer than on a machine of its own a case may take."""


def cases(count: int) -> pytest.MarkDecorator:
    """For a test that's tried so often, each time with another `chance`."""
    return pytest.mark.parametrize("case", range(max(1, round(count * SCALE))))


@dataclass(frozen=True)
class Ended:
    """What became of a child. code: negative for the signal that ended it. peak: bytes beyond those at its start.
    children: the most bytes that one of its own children had.
    seconds: of processor time, its own children's too, or a quarter of those that passed, if that is more: the machine
    may be busy.
    """

    code: int
    out: bytes
    err: bytes
    seconds: float
    peak: int
    children: int = 0

    @property
    def text(self) -> str:
        return (self.out + self.err).decode("utf-8", "replace")

    @property
    def told(self) -> str:
        return self.err.decode("utf-8", "replace")

    def assert_alive(self, about: object, seconds: float = 5.0) -> str:
        """No death by a signal, no traceback, no hang, no memory without end. Returns the case in words."""
        case = f"{about}\nexit code {self.code} after {self.seconds:.1f} s, {self.peak >> 20} MiB\n{self.text[-3000:]}"
        assert self.code in EXIT_CODES, case
        assert "Traceback" not in self.text and "Exception ignored" not in self.text, case
        assert self.seconds < seconds and self.peak < MAX_BYTES and self.children < MAX_IN_CHILDREN, case
        return case

    def assert_sound(self, about: object, seconds: float = 5.0) -> None:
        """Nor anything that a terminal obeys, and an error of a few lines."""
        case = self.assert_alive(about, seconds)
        assert not obeyed(self.told), f"{obeyed(self.told)!r} in {case!r}"  # the answer goes to a file as it is
        if self.code not in (0, 130) and b"verdict   incompatible" not in self.out:  # a check's report says why
            assert 1 <= self.told.rstrip().count("\n") <= 4, case


def specdec(*args: object, seconds: float = 5.0, **environment: str) -> Ended:
    """Run a command in a child forked from a process that has imported everything already: some 20 ms each."""
    return in_child(command, [*map(str, args)], seconds=seconds, **environment)


@functools.cache
def forking() -> multiprocessing.context.ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["children"])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # or it would find nothing to import
    return server


def in_child(function, *args, seconds: float = 5.0, **environment: str) -> Ended:
    """Run a function of an importable module in a child, its streams in files. It is killed when it hangs."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "in").touch()
        child = forking().Process(target=enter, args=(folder, {**os.environ, **environment}, function, args))
        child.start()
        started = time.monotonic()
        child.join(PATIENCE * seconds + 5)
        passed = time.monotonic() - started
        if child.exitcode is None:
            child.kill()
            child.join()
        out, err = ((where / name).read_bytes() for name in ("out", "err"))
        told = (where / "used").read_text().split() if (where / "used").exists() else ("0", "0", "0")
        return Ended(child.exitcode, out, err, max(float(told[0]), passed / PATIENCE), int(told[1]), int(told[2]))
