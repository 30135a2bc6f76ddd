"""Which of llama.cpp's kernels work on this processor: tried in a child process, once for each build and processor.

Some don't. A build for another processor crashes at an instruction that this one lacks; a compiler may miscompile the
code for matrix units (building.py); a new kernel may give wrong numbers. So before the library is loaded here, a child
decodes with it as specdec will (trial_child.py). If that fails with the extra buffers, which keep weights in another
order for faster kernels, it tries again without them.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.json_store import JsonStore, digest
from specdec_cli.llama import building, host
from specdec_cli.llama.trial_process import FROM_OUTSIDE, NO_GPU, SCRIPT, Child, name_of
from specdec_cli.user_files import cache_dir

USUAL = frozenset({1, 2, 8, 12, 14})
"""ggml's numbers of the weight types that every build is tried with: F16, Q4_0, Q8_0, Q4_K, Q6_K."""
UNTRIED = frozenset({0, 16, 17, 19, 22, 24, 25, 26, 27, 28, 29})
"""Types that need no trial of their own: F32 is in every trial, some aren't weights, and the IQ types of one and two
bits have no fast kernels; to make such weights would take up to 14 s.
"""
_WAIT_S, _HANG = 10.0, "a trial did not finish"
_MISSING = ("No such file", "not found")
"""What the loader says of a library that isn't there."""
_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class TriedKernels:
    """extra_buffers: whether weights may be kept in them. fault: how passes failed with them; empty if they didn't.
    death: how passes failed without them, too.
    """

    extra_buffers: bool
    fault: str = ""
    death: str = ""

    def __str__(self) -> str:
        if self.death and any(words in self.death for words in _MISSING):
            return f"llama.cpp cannot be loaded, because a library is missing: {self.death}"
        if self.death:
            return f"this build of llama.cpp does not work on this processor: {self.death}"
        if self.fault:
            why = f"the fast kernels of this build of llama.cpp do not work on this processor ({self.fault})"
            return f"{why}, so slower ones are used; to rebuild it: {rebuild()}"
        return "works" if self.extra_buffers else "works, without repacked weights (SPECDEC_REPACK=0)"


_known: dict[frozenset[int], TriedKernels] = {}


def verdict(types: Collection[int] = ()) -> TriedKernels:
    """What works here, for models with these weight types and the usual ones. Raises SpecdecError if nothing does.

    The first call for a build, a processor and a type takes part of a second. The result is kept on disk.
    """
    found = _of(USUAL)
    if found.extra_buffers and (more := frozenset(types) - USUAL - UNTRIED):
        own = _of(more)
        found = own if own.fault or own.death else found
    if found.death:
        raise SpecdecError(str(found), f"Build it on this machine: {rebuild()}")
    if os.environ.get("SPECDEC_REPACK") == "0":
        return TriedKernels(False, found.fault)
    return found


def rebuild() -> str:
    """The command that builds llama.cpp again. Vulkan is used only where it was asked for, so it's named."""
    return building.command("vulkan" if any(_libraries().glob("*ggml-vulkan*")) else "")


def try_again() -> TriedKernels:
    """Try the usual types again, whatever is known. Raises no error if nothing works."""
    _known.clear()
    return _of(USUAL, again=True)


def _of(types: frozenset[int], again: bool = False) -> TriedKernels:
    if types in _known:
        return _known[types]
    store, name = JsonStore(_folder, TriedKernels, "It will be tried again."), _name(types)
    found: TriedKernels | None = None
    with suppress(SpecdecError):
        found = None if again else store.load(name)
    if found is None:
        found = TriedKernels(True)  # a build that can't be tried is assumed to work
        fault = _fault(types, extra_buffers=True)
        death = _fault(types, extra_buffers=False) if fault else ""
        if fault is not None and death is not None:
            found = TriedKernels(not fault, fault, death)
            if _HANG not in fault + death:  # on a busy machine, a working build may time out
                with suppress(SpecdecError):  # it is tried again next time
                    store.save(name, found)
    _known[types] = found
    return found


def _fault(types: frozenset[int], extra_buffers: bool) -> str | None:
    """How a trial fails; empty if it doesn't, None if that can't be known."""
    how = "extra" if extra_buffers else "plain"
    # On a busy machine, several threads may wait too long for each other.
    for count in dict.fromkeys((host.usual_threads(), 1)):
        # A child that crashes can't remove its files, so the folder is this process's.
        with tempfile.TemporaryDirectory(prefix="specdec-", ignore_cleanup_errors=True) as folder:
            arguments = "kernels", os.getpid(), folder, count, how, *sorted(types)
            child = Child([SCRIPT, *map(str, arguments)], _WAIT_S, NO_GPU)
            try:
                code = child.wait()
                if not child.timed_out:
                    return _fault_of(code, child)
            finally:
                child.stop()
    return f"{_HANG} within {_WAIT_S:.0f} s"


def _fault_of(code: int, child: Child) -> str | None:
    """The same for a trial that ended with this code."""
    if code == 2 or code in FROM_OUTSIDE:
        return None
    if code == 1:
        return child.output().decode("utf-8", "replace").strip() or child.last_words() or name_of(code)
    return name_of(code) if code else ""


def _folder() -> Path:
    return cache_dir() / "kernels"


def _name(types: frozenset[int]) -> str:
    devices = [path for pattern in _DEVICES for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    parts = (build(), building.processor(), *devices, sys.platform, *map(str, sorted(types)))
    return digest("\n".join(parts), 16)


@cache
def build() -> str:
    """Identifies this build of llama.cpp without loading it, by its files' paths, sizes and times."""
    files = sorted(path for path in _libraries().glob("*") if "llama" in path.name or "ggml" in path.name)
    return " ".join(f"{path}/{path.stat().st_size}/{path.stat().st_mtime_ns}" for path in files)


def _libraries() -> Path:
    """The folder that the bindings load llama.cpp from."""
    if (given := os.environ.get("LLAMA_CPP_LIB_PATH")) is not None:
        return Path(given)
    spec = importlib.util.find_spec("llama_cpp")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) / "lib" if places else Path()


if __name__ == "__main__":
    _WAIT_S = 60.0  # after a build, a machine that is busy for a while must not pass for a fault
    again = try_again()
    print(again)
    sys.exit(0 if again.extra_buffers else 1)
