"""Profiles: named model pairs with the settings that suit them, as YAML files.

The bundled ones say where what they claim was seen; the user's own, which override them by name, need only a target.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import platformdirs
import yaml

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models import references
from specdec_cli.models.files import write_whole

DEMO = "demo"


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair by name: models on the Hub (`repo:quant`), or files, whose paths count from the profile's own folder.

    download_gb: both models. memory_gb: both with a context of 4,096 tokens. fits_gb: the class of machine it suits.
    """

    name: str
    target: str
    draft: str | None = None
    description: str = ""
    why: str = ""
    licence: str = ""
    gated: bool = False
    download_gb: float | None = None
    memory_gb: float | None = None
    fits_gb: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    verified: str = ""
    folder: Path = Path()

    @property
    def own(self) -> bool:
        """Whether it is the user's, not a bundled one."""
        return self.folder != bundled_dir()

    def model(self, role: Literal["target", "draft"]) -> str | None:
        """What names the model: a reference to the Hub, or the path of a file; None if there is none."""
        text = self.target if role == "target" else self.draft
        if text is None:
            return None
        path = self.folder / Path(text).expanduser()
        return text if references.parse(text) and not path.is_file() else str(path)


_KEYS = tuple(field.name for field in fields(Profile) if field.name not in ("name", "folder"))
_KINDS: dict[str, tuple[type, str]] = {
    "settings": (dict, "one `key: value` a line under it"),
    "sources": (list, "one `- text` a line under it"),
}
_SAVED = "saved by specdec pull, "
_TEXT = (str, "text; quote it if it looks like something else")


def config_dir() -> Path:
    """Where the user's own profiles and settings live."""
    return platformdirs.user_config_path("specdec")


def bundled_dir() -> Path:
    """Where the profiles that come with specdec live: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def names() -> list[str]:
    """All profiles, the user's own included."""
    return sorted({name for folder in _folders() for name in _names_in(folder)})


def load(name: str) -> Profile:
    """A profile by name; the user's own override those that are bundled.

    Raises SpecdecError if there is none of that name, or its file is malformed.
    """
    for folder in _folders():
        if name in _names_in(folder):
            return _parse(name, folder / f"{name}.yaml")
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"Did you mean {close[0]!r}?" if close else "specdec ls lists the profiles."
    if any(character.isspace() for character in name):
        hint = "Is it the prompt? It goes without -p, which names a pair (specdec ls)."
    raise SpecdecError(f"there is no profile {name!r}", hint)


def _names_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.yaml")}


def _folders() -> tuple[Path, Path]:
    return config_dir() / "profiles", bundled_dir()


def _parse(name: str, path: Path) -> Profile:
    data = read_mapping(path)
    check_keys(data, _KEYS, path)
    if not isinstance(data.get("target"), str):
        raise UsageError(f"{path.name} names no target", "Add a line `target: REPO:QUANT` or `target: PATH`.")
    for key, value in data.items():
        _check(key, value, path)
    return Profile(name=name, folder=path.parent, **data)


def _check(key: str, value: Any, path: Path) -> None:
    """Raise UsageError unless a profile's value is of the right kind."""
    kind, wanted = _KINDS.get(key, _TEXT)
    right = isinstance(value, kind)
    if key == "gated":
        right, wanted = isinstance(value, bool), "true or false"
    elif key.endswith("_gb"):
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6
        wanted = "a number above 0"
    elif key == "sources" and right:
        right = all(isinstance(source, str) for source in value)
    if not right and not (key == "draft" and value is None):
        raise UsageError(f"{key} in {path.name} is {str(value)[:60]!r}", f"It must be {wanted}.")


def save(name: str, target: str, draft: str | None, description: str) -> Path:
    """Write a profile of the user's own; raises SpecdecError if it cannot be written."""
    path = config_dir() / "profiles" / f"{name}.yaml"
    data = {"description": _SAVED + description, "target": target, "draft": draft}
    write_whole(path, yaml.safe_dump(data, sort_keys=False))
    return path


def is_as_saved(name: str) -> bool:
    """Whether a profile of the user's is still as `save` wrote it."""
    try:
        data = read_mapping(config_dir() / "profiles" / f"{name}.yaml")
    except UsageError:
        return False
    return set(data) <= {"description", "target", "draft"} and str(data.get("description")).startswith(_SAVED)


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping, or nothing; raises UsageError if it holds anything else."""
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # PyYAML raises them all
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())}", "Mend or remove the file.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a mapping", "Write one `key: value` a line.")
    return data


def check_keys(data: Iterable[Any], known: Iterable[str], path: Path) -> None:
    """Raise UsageError on the first unknown key, with the nearest known one."""
    for key in data:
        if key not in known:
            raise UsageError(f"{path.name} has the unknown key {key!r}", suggest(str(key), known, "Keys"))


def suggest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for a misspelt word: the nearest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"Did you mean {close[0]!r}?" if close else f"{what}: {', '.join(known)}."
