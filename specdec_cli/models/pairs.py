"""Pairs that were pulled: which files of which commits they are, kept so that they can be listed and removed."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models import references
from specdec_cli.models.hub import cache
from specdec_cli.models.hub.repository import RemoteFile, RemoteModel
from specdec_cli.models.profiles import config_dir

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PulledPair:
    """A pair in the Hub's cache. draft: None for a profile without one. verdict: of the tokenizers' comparison.

    made_profile: whether pulling it also made the profile of its name.
    """

    name: str
    target: RemoteModel
    draft: RemoteModel | None
    verdict: str
    pulled: str
    made_profile: bool = False

    @property
    def models(self) -> tuple[RemoteModel, ...]:
        return (self.target, self.draft) if self.draft else (self.target,)

    @property
    def size(self) -> int:
        return sum(model.size for model in self.models)

    def is_here(self) -> bool:
        """Whether every file is in the cache, whole."""
        return all(cache.is_here(model, file) for model in self.models for file in model.files)

    def paths(self) -> tuple[Path, Path | None]:
        """The first file of target and draft."""
        target, *draft = (cache.path_of(model, model.files[0]) for model in self.models)
        return target, draft[0] if draft else None


def check_name(name: str) -> str:
    """The name, if it can be one of a pair; raises UsageError otherwise."""
    if not re.fullmatch(r"[\w][\w.+-]{0,150}", name, re.ASCII) or name.endswith((".gguf", ".yaml", ".json")):
        raise UsageError(f"{name!r} cannot be a pair's name", "Use letters, digits, '.', '_', '+' and '-', no ending.")
    return name


def name_of(target: RemoteModel, draft: RemoteModel | None) -> str:
    """A name for a pair that was given none: of its two files."""
    names = [model.files[0].name.rpartition("/")[2] for model in (target, draft) if model]
    return check_name("+".join(references.stem(name)[:70] for name in names))


def names() -> list[str]:
    """All pulled pairs."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def load(name: str) -> PulledPair | None:
    """A pulled pair by name; None if there is none. Raises SpecdecError if its record is damaged."""
    path = _folder() / f"{name}.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}")
        target, draft = (_model(data[role]) for role in ("target", "draft"))
        if target is None:
            raise ValueError("it names no target")
        return PulledPair(name, target, draft, str(data["verdict"]), str(data["pulled"]), bool(data["made_profile"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise SpecdecError(
            f"cannot read {path}: {why}", f"Run specdec pull {name} again, or remove the file."
        ) from None


def save(pair: PulledPair) -> None:
    """Record a pair, all at once or not at all; raises SpecdecError if it cannot be written."""
    path = _folder() / f"{pair.name}.json"
    data = {"format": FORMAT, **{key: value for key, value in asdict(pair).items() if key != "name"}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        Path(file.name).replace(path)
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or mend the folder.") from None


def removable(pair: PulledPair) -> tuple[int, list[str]]:
    """Bytes that removing a pair would free, and the names of its files that another pair uses and that stay."""
    used = _used_by_others(pair)
    files = [(model, file) for model in pair.models for file in model.files]
    free = sum(cache.size(model, file) for model, file in files if (model.repo, file.digest) not in used)
    return free, [file.name for model, file in files if (model.repo, file.digest) in used]


def remove(pair: PulledPair) -> int:
    """Forget a pair and take its files out of the cache, but for those that another pair uses. Returns bytes freed."""
    used, freed = _used_by_others(pair), 0
    try:
        for model in pair.models:
            for file in model.files:
                if (model.repo, file.digest) not in used:
                    freed += cache.remove(model, file)
        (_folder() / f"{pair.name}.json").unlink()
        if pair.made_profile:
            (config_dir() / "profiles" / f"{pair.name}.yaml").unlink(missing_ok=True)
    except OSError as error:
        raise SpecdecError(f"cannot remove {error.filename}: {error.strerror}", "Mend the folder's rights.") from None
    return freed


def _used_by_others(pair: PulledPair) -> set[tuple[str, str]]:
    """Repository and digest of every file that belongs to another pair."""
    return {
        (model.repo, file.digest)
        for name in names()
        if name != pair.name and (other := _readable(name))
        for model in other.models
        for file in model.files
    }


def _readable(name: str) -> PulledPair | None:
    """A pair, if its record can be read: one that is damaged names no files that could be kept."""
    try:
        return load(name)
    except SpecdecError:
        return None


def _folder() -> Path:
    return config_dir() / "pulled"


def _model(data: dict[str, Any] | None) -> RemoteModel | None:
    if data is None:
        return None
    files = tuple(RemoteFile(str(file["name"]), int(file["size"]), str(file["digest"])) for file in data["files"])
    if not files or any(references.leads_out(text) for file in files for text in (file.name, file.digest)):
        raise ValueError("its files have impossible names")
    about = {key: str(data[key]) for key in ("reference", "repo", "commit", "licence")}
    if references.parse(about["repo"]) is None or references.leads_out(about["commit"]):
        raise ValueError("its repository has an impossible name")
    return RemoteModel(about["reference"], about["repo"], about["commit"], files, bool(data["gated"]), about["licence"])
