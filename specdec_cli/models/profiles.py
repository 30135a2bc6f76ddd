"""Profiles: named model pairs with the settings that suit them, as YAML files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from specdec_cli.decoding.errors import SpecdecError, UsageError

DEMO = "demo"
_KEYS = ("description", "target", "draft", "licence", "settings")


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair by name. Relative paths count from the profile's own folder."""

    name: str
    target: str
    draft: str | None = None
    description: str = ""
    licence: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()


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
    raise SpecdecError(f"there is no profile {name!r}", suggest(name, names(), "Profiles"))


def _names_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.yaml")}


def _folders() -> tuple[Path, Path]:
    return config_dir() / "profiles", bundled_dir()


def _parse(name: str, path: Path) -> Profile:
    data = read_mapping(path)
    check_keys(data, _KEYS, path)
    if not isinstance(data.get("target"), str):
        raise UsageError(f"{path.name} names no target", "Add a line `target: PATH`.")
    if not isinstance(data.get("draft"), (str, type(None))):
        raise UsageError(f"the draft in {path.name} is not a path", "Write `draft: PATH`, or leave it out.")
    if not isinstance(data.setdefault("settings", {}), dict):
        raise UsageError(f"the settings in {path.name} are not a mapping", "Write one `key: value` a line under it.")
    return Profile(name=name, folder=path.parent, **data)


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
