"""Small files of our own, written all at once or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError


def write_whole(path: Path, *parts: str | bytes | memoryview) -> None:
    """Replace a file's content; whatever happens, it is the old or the new. Raises SpecdecError if it cannot be.

    parts: one after the other, text as UTF-8.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            new = Path(file.name)
            try:
                for part in parts:
                    file.write(part.encode("utf-8") if isinstance(part, str) else part)
                file.close()
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or mend the folder.") from None


def require_writable(folder: Path) -> None:
    """Raise SpecdecError now rather than after the work whose result is to be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SpecdecError(f"cannot write to {folder}: {error.strerror}", "Mend the folder, or free space.") from None
