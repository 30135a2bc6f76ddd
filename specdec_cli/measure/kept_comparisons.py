"""Kept results of comparisons: JSON files in the user's data folder."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.user_files import read_bytes, require_writable, suggest, write_whole

if TYPE_CHECKING:
    from specdec_cli.measure.compare import ComparisonResult


def path_of(name: str) -> Path:
    """The file of a kept result; raises UsageError on a name that is none."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith(".") or name.endswith(".json"):
        raise UsageError(f"{name!r} cannot be a result's name", "Use letters, digits, '.', '_' and '-', no ending.")
    return _folder() / f"{name}.json"


def kept() -> list[tuple[str, datetime]]:
    """Names of the kept results and when each was taken, the oldest first."""
    entries = []
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, OverflowError):  # a link to nothing, a time that no calendar has
            entries.append((path.stem, datetime.fromtimestamp(path.stat().st_mtime)))
    return sorted(entries, key=lambda entry: entry[1])


def require_place(name: str) -> None:
    """Raise what `store` would, now rather than after minutes of measuring."""
    path = path_of(name)
    require_writable(path.parent)
    if path.is_dir():
        raise SpecdecError(f"cannot write {path}: it is a folder", "Use another name.")


def store(name: str, result: ComparisonResult) -> None:
    """Keep a result, in place of an older one of that name; raises SpecdecError if the disk does not take it."""
    write_whole(path_of(name), json.dumps(result.to_json()))


def load(name: str) -> ComparisonResult:
    """A kept result by name, or any file that `compare --json` or `--save` made. Raises UsageError if it is not there,
    SpecdecError if it is no result.
    """
    from specdec_cli.measure.compare import ComparisonResult

    path = Path(name) if name.endswith(".json") else path_of(name)
    try:
        return ComparisonResult.from_json(read_bytes(path))
    except FileNotFoundError:
        hint = suggest(name, [known for known, _ in kept()], "Kept results")
        raise UsageError(f"there is no kept result {name!r}", hint) from None
    except msgspec.ValidationError:
        raise SpecdecError(
            f"{path.name} is not the result of a comparison", "Use what --save or --json wrote."
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name another result.") from None
    except (ValueError, RecursionError) as error:
        raise SpecdecError(f"cannot read {path}: {' '.join(str(error).split())}", "Name another result.") from None


def _folder() -> Path:
    return platformdirs.user_data_path("specdec") / "comparisons"
