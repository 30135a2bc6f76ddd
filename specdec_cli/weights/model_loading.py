"""Loads model files. A new file is first loaded in a child process, because llama.cpp may crash on it."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import platformdirs

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import TYPES, Header
from specdec_cli.gguf.reader import part_names, read_header
from specdec_cli.json_store import JsonStore, record_name
from specdec_cli.llama import kernels
from specdec_cli.llama.adapter import Adapter, identity
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.trials import TrialLoad

if TYPE_CHECKING:
    from specdec_cli.llama.model import Model

_known: dict[str, TrialRecord] = {}
_running: dict[str, TrialLoad] = {}
_lock = Lock()


def begin_trial(path: Path, adapters: Sequence[Adapter] = (), heads: Path | None = None) -> bool:
    """Start the trial of a file, with any adapters or heads, in the background. Returns whether the file is new. Known
    files need no trial; for files that can't be read, the reader raises the error.
    """
    try:
        name = _name(path, adapters, heads)
        n_bytes = sum(path.with_name(part).stat().st_size for part in part_names(path.name))
    except (OSError, ValueError):
        return False
    if name not in _known and name not in _running:
        with suppress(SpecdecError):  # a damaged record
            if record := TRIALS.load(name):
                _known[name] = record
                return False
        n_bytes += sum(adapter.size for adapter in adapters)
        trial = _running[name] = TrialLoad(path, n_bytes, [adapter.path for adapter in adapters], heads)
        atexit.register(trial.stop)
    return name not in _known


def load_model(
    path: Path,
    placement: Placement,
    interrupt: Interrupt,
    adapters: Sequence[Adapter] = (),
    heads: bool = False,
    header: Header | None = None,
) -> Model:
    """Load a model, after its trial. path: a GGUF file whose header has been validated. adapters: validated ones.
    heads: also load its next-token layers. header: the file's, if it has been read.

    Raises SpecdecError if llama.cpp rejects the file or crashes on it, Interrupted on Ctrl-C.
    """
    from specdec_cli.llama.model import Model  # the import takes as long as half a trial

    with _lock:
        death, what = _death(path, (), interrupt), path.name
        if adapters and not death:
            names = " and ".join(adapter.path.name for adapter in adapters)
            death, what = _death(path, adapters, interrupt), f"{names} on {path.name}"
    if death:
        raise _deadly(what, death)
    return Model(path, placement, interrupt, adapters, heads, _repacks(header or read_header(path)))


def _repacks(header: Header) -> bool:
    """Whether the kernels for repacked weights work with a file's types. Raises SpecdecError if no kernels do."""
    names = {tensor.type for tensor in header.tensors}
    return kernels.verdict([number for number, (name, *_) in TYPES.items() if name in names]).extra_buffers


def _deadly(what: str, death: str) -> SpecdecError:
    return SpecdecError(
        f"llama.cpp crashes on {what}: {death}",
        "The file is damaged or for another version: download it again, or update llama-cpp-python.",
    )


def require_heads(path: Path, heads: Path, interrupt: Interrupt) -> None:
    """Raise SpecdecError if this build of llama.cpp can't draft for a model with the heads in a file, which may be
    `path` itself.
    """
    from specdec_cli.llama import extensions

    extensions.require()
    with _lock:
        death = _death(path, (), interrupt, heads)
    if death:
        raise _deadly(f"heads from {heads.name} with {path.name}", death)


def load_tried(
    path: Path, placement: Placement, interrupt: Interrupt, heads: bool = False, header: Header | None = None
) -> Model:
    """Load a model without a trial: a file of heads after the trial with their target, or one whose weights alone have
    changed since.
    """
    from specdec_cli.llama.model import Model

    return Model(path, placement, interrupt, heads=heads, repacks=_repacks(header or read_header(path)))


def _death(path: Path, adapters: Sequence[Adapter], interrupt: Interrupt, heads: Path | None = None) -> str:
    """How llama.cpp crashed in the trial of a model with these adapters; empty if it didn't."""
    begin_trial(path, adapters, heads)
    name = _name(path, adapters, heads)
    if trial := _running.pop(name, None):
        try:
            _known[name] = TrialRecord(trial.death(interrupt), path.name)
        finally:
            trial.stop()
            atexit.unregister(trial.stop)
        with suppress(SpecdecError):  # if the record can't be saved, the next start tries again
            TRIALS.save(name, _known[name])
    return _known[name].death


def _name(path: Path, adapters: Sequence[Adapter], heads: Path | None) -> str:
    build = kernels.build()
    return name_of(path, build, f"{identity(adapters)} heads {name_of(heads, build)}" if heads else identity(adapters))


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """death: how the file crashed the process; empty if it didn't."""

    death: str
    model: str = field(default="", compare=False)


TRIALS = JsonStore(
    lambda: platformdirs.user_cache_path("specdec", appauthor=False) / "trials",
    TrialRecord,
    "It will be tried again.",
)


def name_of(model: Path, build: str, adapters: str = "") -> str:
    """The name of a file's record: from all parts of it, the build of llama.cpp and the adapters. Raises OSError."""
    parts = [model.with_name(name).stat() for name in part_names(model.name)]
    identity = [(part.st_dev, part.st_ino, part.st_size, part.st_mtime_ns) for part in parts]
    return record_name((model.stem,), f"{identity} {build}{adapters and f' {adapters}'}", digits=16)
