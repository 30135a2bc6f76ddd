"""Which model files have been loaded on trial, and which of them ended the process: one record a file and build."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from specdec_cli.gguf.reader import part_names
from specdec_cli.json_store import JsonStore, record_name


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """death: how the process died of the file; empty if it did not."""

    death: str
    model: str = field(default="", compare=False)


TRIALS = JsonStore(
    lambda: platformdirs.user_cache_path("specdec", appauthor=False) / "trials", TrialRecord, "It is tried again."
)


def name_of(model: Path, build: str, adapters: str = "") -> str:
    """The record's name: the file itself, all parts of it, the build of llama.cpp, and what tells the adapters that
    act in it. Raises OSError.
    """
    parts = [model.with_name(name).stat() for name in part_names(model.name)]
    identity = [(part.st_dev, part.st_ino, part.st_size, part.st_mtime_ns) for part in parts]
    return record_name((model.stem,), f"{identity} {build}{adapters and f' {adapters}'}", digits=16)
