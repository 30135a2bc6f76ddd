"""Kept results of comparisons: JSON files in the user's data folder."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models.user_files import suggest

_NEEDED = {"models", "machine", "versions", "max_tokens", "arms", "prompts", "trials"}
_NEEDED_OF_TRIAL = {"arm", "prompt", "tokens_per_s"}


def folder() -> Path:
    """Where results are kept."""
    return platformdirs.user_data_path("specdec") / "comparisons"


def path_of(name: str) -> Path:
    """The file of a kept result; raises UsageError on a name that is none."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith(".") or name.endswith(".json"):
        raise UsageError(f"{name!r} cannot be a result's name", "Use letters, digits, '.', '_' and '-', no ending.")
    return folder() / f"{name}.json"


def kept() -> list[tuple[str, datetime]]:
    """Names of the kept results and when each was taken, the oldest first."""
    found = [(path.stem, datetime.fromtimestamp(path.stat().st_mtime)) for path in folder().glob("*.json")]
    return sorted(found, key=lambda entry: entry[1])


def require_writable(path: Path) -> None:
    """Raise UsageError now rather than after minutes of measuring."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def write(path: Path, text: str) -> None:
    """Write a file whole; raises SpecdecError if the disk does not take it."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or name another file.") from None


def store(name: str, result: dict[str, Any]) -> None:
    """Keep a result, in place of an older one of that name."""
    folder().mkdir(parents=True, exist_ok=True)
    write(path_of(name), json.dumps(result))


def load(name: str) -> dict[str, Any]:
    """A kept result by name, or any file that `compare --json` or `--save` made.

    Raises UsageError if there is none, or it is something else.
    """
    path = Path(name) if name.endswith(".json") else path_of(name)
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        names = [found for found, _ in kept()]
        raise UsageError(f"there is no kept result {name!r}", suggest(name, names, "Kept results")) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())}", "Name another result.") from None
    if not _is_result(result):
        raise UsageError(f"{path.name} is not the result of a comparison", "Use what --save or --json wrote.")
    return dict(result)


def _is_result(found: Any) -> bool:
    """Whether a JSON object has what is read of a kept result."""
    return (
        isinstance(found, dict)
        and found.get("format") == 1
        and found.keys() >= _NEEDED
        and all(isinstance(trial, dict) and trial.keys() >= _NEEDED_OF_TRIAL for trial in found["trials"])
    )
