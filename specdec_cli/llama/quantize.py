"""Copies of a model with fewer layers or fewer bits, written by llama.cpp's quantiser in a child process.

The call can't be interrupted, and llama.cpp ends its process on some bad input (GGML_ASSERT). A child process can be
killed at any moment. Its progress comes through a pipe, in llama.cpp's log.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import IO

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt

_BEGUN = re.compile(r"\[ *(\d+)/ *\d+\] ")
_UNFIT = re.compile(r"ncols +(\d+) not divisible .*required for type +(\w+)\).* falling back to +(\w+)")
_SIZE = re.compile(r"quant size += +([\d.]+) MiB")
_FAILED = "failed to quantize: "
# The child imports this package from where the parent did, not from its working directory.
_CHILD = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from specdec_cli.llama import quantize as q; q.main()"


@dataclass(frozen=True, slots=True)
class Copy:
    """What to write. drop: layers to leave out. file_type: llama.cpp's number of a type; None: keep each tensor's."""

    source: Path
    out: Path
    threads: int
    drop: tuple[int, ...] = ()
    file_type: int | None = None


@dataclass(frozen=True, slots=True)
class Unfit:
    """A tensor whose rows of `columns` values don't fit the wanted type, and the type that it got instead."""

    columns: int
    wanted: str
    got: str


def write(copy: Copy, interrupt: Interrupt, begun: Callable[[int], None]) -> list[Unfit]:
    """Write a copy; `begun` is called with the number of each tensor, from 1, before it is written. Returns the tensors
    that didn't get the wanted type. Raises SpecdecError if llama.cpp refuses or crashes or the disk is full,
    Interrupted on Ctrl-C; the caller must then remove the incomplete file.
    """
    return _quantised(copy, interrupt, begun)[0]


def plan(copy: Copy, interrupt: Interrupt) -> tuple[list[Unfit], int]:
    """What `write` would return, and the bytes of the copy's tensors, in some milliseconds. Raises as `write` does."""
    return _quantised(copy, interrupt, lambda _: None, dry=True)


def _quantised(
    copy: Copy, interrupt: Interrupt, begun: Callable[[int], None], dry: bool = False
) -> tuple[list[Unfit], int]:
    numbers = (
        min(copy.threads, host.processors()),
        -1 if copy.file_type is None else copy.file_type,
        int(dry),
        *sorted(copy.drop),
    )
    command = [sys.executable, "-c", _CHILD, "\n".join(sys.path), *map(str, (copy.source, copy.out, *numbers))]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # otherwise, an abort would start a debugger
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    unfit: list[Unfit] = []
    reason, size = "", 0
    try:
        while (line := _next(lines, interrupt)) is not None:
            if match := _BEGUN.search(line):
                begun(int(match[1]))
            elif match := _UNFIT.search(line):
                unfit.append(Unfit(int(match[1]), match[2].upper(), match[3].upper()))
            elif match := _SIZE.search(line):
                size = int(float(match[1]) * 2**20)
            elif not reason and (_FAILED in line or "GGML_ASSERT" in line or "GGML_ABORT" in line):
                reason = line.split(_FAILED)[-1].strip()
            if os.environ.get("SPECDEC_DEBUG"):
                sys.stderr.write(line)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if "iostream" in reason and copy.out.parent.is_dir():  # what C++ reports if a file can't grow
        raise SpecdecError(f"the disk has no room for {copy.out.name}", "Free some space, or write elsewhere.")
    if code:
        raise SpecdecError(
            f"llama.cpp cannot copy {copy.source.name}: {reason or f'it ended with code {code}'}",
            "SPECDEC_DEBUG=1 shows its log; if the architecture is unknown, update llama-cpp-python.",
        )
    return unfit, size


def _next(lines: Queue[str | None], interrupt: Interrupt) -> str | None:
    while not interrupt.is_set():
        with suppress(Empty):
            return lines.get(timeout=interrupt.POLL_S)
    raise Interrupted


def _read(pipe: IO[bytes], lines: Queue[str | None]) -> None:
    with pipe:
        for line in pipe:
            lines.put(line.decode("utf-8", "replace"))
    lines.put(None)


def main() -> None:
    """The child: `source out threads file_type dry layer...`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    import llama_cpp.llama_cpp as lib

    log = lib.llama_log_callback(_print)
    lib.llama_log_set(log, ctypes.c_void_p(0))
    source, out = map(os.fsencode, sys.argv[1:3])
    threads, file_type, dry, *drop = map(int, sys.argv[3:])
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.only_copy, params.allow_requantize = threads, file_type < 0, True
    params.dry_run = bool(dry)
    if file_type >= 0:
        params.ftype = file_type
    if drop:
        params.prune_layers = (ctypes.c_int32 * (len(drop) + 1))(*drop, -1)
    sys.exit(int(lib.llama_model_quantize(source, out, ctypes.byref(params))))


def _print(_level: int, text: bytes, _user: object) -> None:
    try:
        os.write(1, text)
    except OSError:  # the parent is gone
        os._exit(1)
