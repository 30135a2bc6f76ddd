"""Kept results of comparisons: JSON files in the user's data folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import platformdirs

from specdec_cli.decoding.errors import UsageError
from specdec_cli.models.profiles import suggest


def folder() -> Path:
    """Where results are kept."""
    return platformdirs.user_data_path("specdec") / "comparisons"


def path_of(name: str) -> Path:
    """The file of a kept result; raises UsageError on a name that is none."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be a result's name", "Use letters, digits, '.', '_' and '-'.")
    return folder() / f"{name}.json"


def require_writable(path: Path | None) -> None:
    """Raise UsageError now rather than after minutes of measuring; None is fine."""
    if path is None:
        return
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def write(path: Path, text: str) -> None:
    """Write a file whole; raises UsageError if the disk does not take it."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Free some space, or name another file.") from None


def store(name: str, result: dict[str, Any]) -> None:
    """Keep a result, in place of an older one of that name."""
    write(path_of(name), json.dumps(result))


def load(name: str) -> dict[str, Any]:
    """A kept result by name, or any file that `compare --json` or `--save` made.

    Raises UsageError if there is none, or it is something else.
    """
    path = Path(name) if name.endswith(".json") else path_of(name)
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        kept = sorted(found.stem for found in folder().glob("*.json"))
        raise UsageError(f"there is no kept result {name!r}", suggest(name, kept, "Kept results")) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())}", "Name another result.") from None
    if not isinstance(result, dict) or result.get("format") != 1 or "trials" not in result:
        raise UsageError(f"{path.name} is not the result of a comparison", "Use what --save or --json wrote.")
    return result
