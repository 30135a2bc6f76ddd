"""Records which draft was made from which target, for `--drafter self`. Drafts of changed files are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import part_names
from specdec_cli.json_store import JsonStore, record_name
from specdec_cli.user_files import config_dir


@dataclass(frozen=True, slots=True)
class _Part:
    """A file, to detect changes. size: bytes. changed: modification time in nanoseconds."""

    path: str
    size: int
    changed: int


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """The files of both models, and how the draft was made."""

    target: tuple[_Part, ...]
    draft: Annotated[tuple[_Part, ...], Meta(min_length=1)]
    how: str = ""


_DRAFTS = JsonStore(lambda: config_dir() / "drafts", MadeDraft, "Make the draft again: specdec draft.")


def path_of(target: Path) -> Path:
    """The file that records the draft made from a target."""
    target = target.resolve()
    return _DRAFTS.path(record_name((target.stem,), str(target)))


def remember(target: Path, draft: Path, how: str) -> None:
    """Record the draft made from a target, replacing an older one. Raises SpecdecError if it can't be written."""
    _DRAFTS.save(path_of(target).stem, MadeDraft(_parts(target), _parts(draft), how))


def find(target: Path) -> Path | None:
    """The draft last made from a target; None if either file has changed. Raises SpecdecError on a damaged record."""
    if (made := _DRAFTS.load(path_of(target).stem)) is None:
        return None
    draft = Path(made.draft[0].path)
    try:
        return draft if (made.target, made.draft) == (_parts(target), _parts(draft)) else None
    except (FileNotFoundError, ValueError):  # ValueError: a NUL in a path
        return None
    except OSError as error:
        raise SpecdecError(f"cannot read {error.filename}: {error.strerror}", "Check its permissions.") from None


def _parts(model: Path) -> tuple[_Part, ...]:
    files = [model.with_name(name).resolve() for name in part_names(model.name)]
    return tuple(_Part(str(file), (about := file.stat()).st_size, about.st_mtime_ns) for file in files)
