"""Profiles: YAML files of named model pairs with suitable settings.

Bundled profiles cite their sources. The user's own override bundled ones of the same name and need only a target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from specdec_cli.decoding.errors import UsageError
from specdec_cli.pairs import references
from specdec_cli.user_files import (
    bundled_dir,
    config_dir,
    expanded,
    is_file,
    named,
    nearest,
    read_mapping,
    to_record,
    write_whole,
)

DEMO = "demo"
_Gigabytes = Annotated[float, Meta(gt=0, lt=1e6)]
_SAVED = "saved by specdec pull, "
_FIX = (
    "A profile needs `target: REPO:QUANT` or `target: PATH`. Put text that looks like a number in quotes. gated is "
    "true or false, sizes are numbers above 0, sources is a list, and settings has one `key: value` per line."
)


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair by name: models on the Hub (`repo:quant`), or files, with paths relative to the profile's folder.

    download_gb: both models. memory_gb: both, with a context of 4,096 tokens. fits_gb: the memory of suitable machines.
    """

    name: str
    target: str
    draft: str | None = None
    description: str = ""
    why: str = ""
    licence: str = ""
    gated: bool = False
    download_gb: _Gigabytes | None = None
    memory_gb: _Gigabytes | None = None
    fits_gb: _Gigabytes | None = None
    settings: dict[Any, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    verified: str = ""
    file: Path = Path()

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def own(self) -> bool:
        return self.folder != bundled_dir()

    def model(self, role: Literal["target", "draft"]) -> str | None:
        """A reference to the Hub or the path of a file; None without a draft."""
        text = self.target if role == "target" else self.draft
        if text is None:
            return None
        path = self.folder / expanded(text)
        return text if references.parse_remote(text) and not is_file(path) else str(path)


def names() -> list[str]:
    return list(_files())


def is_profile(name: str) -> bool:
    """Whether a name is a profile's, not a file's or a model's on the Hub."""
    return not (references.parse(name) or name.endswith(".gguf")) and name in names()


def model_name(name: str, role: Literal["target", "draft"]) -> str:
    """The target or draft of a profile; other names unchanged. Raises UsageError if the profile has no draft."""
    model = load(name).model(role) if is_profile(name) else name
    if model is None:
        raise UsageError(f"the profile {name} has no draft", "Name one, or choose another profile.")
    return model


def load(name: str) -> Profile:
    """A profile by name. Raises UsageError if there is none, or its file is malformed."""
    files = _files()
    if name in files:
        path = files[name]
        return to_record(read_mapping(path), Profile, path.name, _FIX, name=name, file=path)
    fix = nearest(name, files) or "specdec ls lists the profiles."
    if any(character.isspace() for character in name):
        fix = "If this is the prompt, leave out -p, which names a pair (specdec ls)."
    raise UsageError(f"there is no profile {name!r}", fix)


def save(name: str, target: str, draft: str | None, description: str) -> Path:
    """Write a user profile. Raises SpecdecError if it can't be written."""
    import yaml

    path = config_dir() / "profiles" / f"{name}.yaml"
    data = {"description": _SAVED + description, "target": target, "draft": draft}
    write_whole(path, yaml.safe_dump(data, sort_keys=False))
    return path


def is_as_saved(name: str, target: str, draft: str | None) -> bool:
    """Whether a user profile is still as `save` wrote it for these models."""
    try:
        data = read_mapping(config_dir() / "profiles" / f"{name}.yaml")
    except UsageError:
        return False
    return str(data.pop("description", "")).startswith(_SAVED) and data == {"target": target, "draft": draft}


def _files() -> dict[str, Path]:
    return named(config_dir() / "profiles", bundled_dir())
