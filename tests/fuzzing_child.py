"""Imported by the process from which `fuzzing` forks its children: specdec and llama.cpp, not yet started."""

import atexit
import importlib
import os
import pkgutil
import resource
import sys
from pathlib import Path

import specdec_cli
from specdec_cli.cli.app import app

for module in pkgutil.walk_packages(specdec_cli.__path__, "specdec_cli."):
    if not module.name.endswith("__main__") and ".training" not in module.name:  # which takes torch
        importlib.import_module(module.name)


def enter(folder: str, environment: dict[str, str], function, args) -> None:
    """The child: streams to files, the environment of the test, and what it used at the end."""
    where = Path(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(("in", "out", "err")):
        os.dup2(os.open(where / name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "r" if n == 0 else "w", encoding="utf-8", closefd=False) for n in range(3)
    )
    before = used()[1]
    try:
        function(*args)
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()  # ends its own children, whose memory counts then
        seconds, peak, children = used()
        (where / "used").write_text(f"{seconds} {peak - before} {children}")


def command(args: list[str]) -> None:
    """A command line, as the `specdec` command runs it."""
    sys.argv = ["specdec", *args]
    app()


def used() -> tuple[float, int, int]:
    """Seconds of processor time of this process and its children, and the most memory that it and any of them has had,
    in bytes.
    """
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, own.ru_maxrss * unit, children.ru_maxrss * unit
