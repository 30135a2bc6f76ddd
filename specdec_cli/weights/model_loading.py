"""Loads model files. A new file is first loaded in a child process, because llama.cpp may crash on it."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import TYPES
from specdec_cli.gguf.reader import part_names, read_header
from specdec_cli.json_store import JsonStore, record_name
from specdec_cli.llama import kernels
from specdec_cli.llama.adapter import Adapter, identity
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.trial_process import FROM_OUTSIDE, Child, begin_load
from specdec_cli.user_files import cache_dir

if TYPE_CHECKING:
    from specdec_cli.llama.model import Model


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """death: how the file crashed the process; empty if it didn't."""

    death: str
    model: str = field(default="", compare=False)


TRIALS = JsonStore(lambda: cache_dir() / "trials", TrialRecord, "It will be tried again.")
_known: dict[str, TrialRecord] = {}
_running: dict[str, Child] = {}
_lock = Lock()


def begin_trial(path: Path, adapters: Sequence[Adapter] = (), heads: Path | None = None) -> bool:
    """Start the trial of a file, with any adapters or heads, in the background. Returns whether the file is new. Known
    files need no trial; for files that can't be read, the reader raises the error.
    """
    try:
        name = name_of(path, adapters, heads)
        n_bytes = sum(path.with_name(part).stat().st_size for part in part_names(path.name))
    except (OSError, ValueError):
        return False
    if name not in _known and name not in _running:
        with suppress(SpecdecError):  # a damaged record
            if record := TRIALS.load(name):
                _known[name] = record
                return False
        n_bytes += sum(adapter.size for adapter in adapters)
        trial = _running[name] = begin_load(path, n_bytes, [adapter.path for adapter in adapters], heads)
        atexit.register(trial.stop)
    return name not in _known


def load_model(
    path: Path, placement: Placement, interrupt: Interrupt, adapters: Sequence[Adapter] = (), heads: bool = False
) -> Model:
    """Load a model, after its trial. path: a GGUF file whose header has been validated. adapters: validated ones.
    heads: also load its next-token layers.

    Raises SpecdecError if llama.cpp rejects the file or crashes on it, Interrupted on Ctrl-C.
    """
    with _lock:
        death, what = _death(path, (), interrupt), path.name
        if adapters and not death:
            names = " and ".join(adapter.path.name for adapter in adapters)
            death, what = _death(path, adapters, interrupt), f"{names} on {path.name}"
    if death:
        raise _deadly(what, death)
    return load_tried(path, placement, interrupt, adapters, heads)


def _deadly(what: str, death: str) -> SpecdecError:
    return SpecdecError(
        f"llama.cpp crashes on {what}: {death}",
        "The file is damaged or for another version: download it again, or update llama-cpp-python.",
    )


def require_heads(path: Path, heads: Path, interrupt: Interrupt) -> None:
    """Raise SpecdecError if llama.cpp can't draft for a model with the heads in a file, which may be `path` itself."""
    from specdec_cli.llama import undeclared

    undeclared.require_heads()
    with _lock:
        death = _death(path, (), interrupt, heads)
    if death:
        raise _deadly(f"heads from {heads.name} with {path.name}", death)


def load_tried(
    path: Path, placement: Placement, interrupt: Interrupt, adapters: Sequence[Adapter] = (), heads: bool = False
) -> Model:
    """The same without a trial: for a file of heads after the trial with their target, or one whose weights alone have
    changed since. Raises SpecdecError if no kernels work with the file's types.
    """
    from specdec_cli.llama.model import Model  # the import takes as long as half a trial

    names = {tensor.type for tensor in read_header(path).tensors}
    repacks = kernels.verdict([number for number, (name, *_) in TYPES.items() if name in names]).extra_buffers
    return Model(path, placement, interrupt, adapters, heads, repacks)


def _death(path: Path, adapters: Sequence[Adapter], interrupt: Interrupt, heads: Path | None = None) -> str:
    """How llama.cpp crashed in a model's trial; empty if it didn't. Raises SpecdecError at a limit, or Interrupted."""
    begin_trial(path, adapters, heads)
    name = name_of(path, adapters, heads)
    if trial := _running.pop(name, None):
        try:
            if trial.wait(interrupt) in FROM_OUTSIDE or trial.timed_out:
                raise SpecdecError(
                    f"a trial load of {path.name} did not finish within its limits of time and memory",
                    "Close other programs and try again. If that doesn't help, the file may be damaged: download it "
                    "again.",
                )
            _known[name] = TrialRecord(trial.death(), path.name)
        finally:
            trial.stop()
            atexit.unregister(trial.stop)
        with suppress(SpecdecError):  # if the record can't be saved, the next start tries again
            TRIALS.save(name, _known[name])
    return _known[name].death


def name_of(model: Path, adapters: Sequence[Adapter] = (), heads: Path | None = None) -> str:
    """The name of a file's record: from all parts of it, the build of llama.cpp, adapters and heads. Raises OSError."""
    parts = [model.with_name(name).stat() for name in part_names(model.name)]
    files = [(part.st_dev, part.st_ino, part.st_size, part.st_mtime_ns) for part in parts]
    more = identity(adapters) + (f" heads {name_of(heads)}" if heads else "")
    return record_name((model.stem,), f"{files} {kernels.build()}{more and f' {more}'}", digits=16)
