"""Which draft was made of which target, so that `--drafter self` finds it. Only files that are still the same count."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models import files
from specdec_cli.models.gguf import part_names
from specdec_cli.models.profiles import config_dir

FORMAT = 1
_LONGEST_NAME = 100  # bytes: file systems take 255 in all


def path_of(target: Path) -> Path:
    """Where it is kept what was made of a target."""
    target = target.resolve()
    digest = hashlib.sha256(str(target).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    name = target.stem.encode("utf-8", "surrogateescape")[:_LONGEST_NAME].decode(errors="ignore")
    return config_dir() / "drafts" / f"{name}-{digest}.json"


def remember(target: Path, draft: Path, how: str) -> None:
    """Keep that `draft` was made of `target`, in place of an older one. Raises SpecdecError if that cannot be kept."""
    found = {"format": FORMAT, "target": _identity(target), "draft": _identity(draft), "how": how}
    files.write_whole(path_of(target), json.dumps(found, indent=1))


def find(target: Path) -> Path | None:
    """The draft last made of a target; None if there is none, or if either file is another by now.

    Raises SpecdecError if what was kept is damaged.
    """
    path = path_of(target)
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["format"] != FORMAT:
            raise SpecdecError(
                f"cannot read {path}: its format is {found['format']}, not {FORMAT}",
                "Remove the file, and make the draft again.",
            )
        draft = Path(found["draft"][0]["path"])
        same = found["target"] == _identity(target) and found["draft"] == _identity(draft)
        return draft if same else None
    except FileNotFoundError:  # the record, or a model
        return None
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror}", "Check its permissions.") from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise SpecdecError(f"{path} is damaged", "Remove the file, and make the draft again.") from None


def _identity(model: Path) -> list[dict[str, Any]]:
    """What tells that a model's files are still those they were: their places, sizes and times."""
    found = []
    for name in part_names(model.name):
        part = model.with_name(name).resolve()
        about = part.stat()
        found.append({"path": str(part), "size": about.st_size, "changed": about.st_mtime_ns})
    return found
