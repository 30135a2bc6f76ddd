"""Pairs that were pulled: which files of which commits they are, kept so that they can be listed and removed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.hub import cache
from specdec_cli.hub.repository import RemoteFile, RemoteModel
from specdec_cli.models import files, profiles, references
from specdec_cli.models.files import write_whole
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
    def references(self) -> tuple[str, str | None]:
        """What target and draft were asked for as."""
        return self.target.reference, self.draft.reference if self.draft else None

    def is_here(self) -> bool:
        """Whether every file is in the cache, whole."""
        return all(cache.is_whole(model, file) for model in self.models for file in model.files)

    def paths(self) -> tuple[Path, Path | None]:
        """The first file of target and draft."""
        target, *draft = (cache.path_of(model, model.files[0]) for model in self.models)
        return target, draft[0] if draft else None


def require_writable() -> None:
    """Raise SpecdecError now rather than after gigabytes."""
    files.require_writable(_folder())
    files.require_writable(config_dir() / "profiles")


def check_name(name: str) -> str:
    """The name, if it can be one of a pair; raises UsageError otherwise."""
    if not re.fullmatch(r"[\w][\w.+-]{0,150}", name, re.ASCII) or name.endswith((".gguf", ".yaml", ".json")):
        raise UsageError(f"{name!r} cannot be a pair's name", "Use letters, digits, '.', '_', '+' and '-', no ending.")
    return name


def name_of(target: RemoteModel, draft: RemoteModel | None) -> str:
    """A name for a pair that was given none: of its two files, with the owner's and more if another pair has it."""
    models = [model for model in (target, draft) if model]
    wanted = tuple(model.reference for model in models)
    files_ = "+".join(references.stem(model.files[0].name.rpartition("/")[2])[:60] for model in models)
    digest = hashlib.sha256(repr(wanted).encode()).hexdigest()[:8]
    owners = "+".join(model.repo.partition("/")[0] for model in models)
    for name in (files_, f"{owners}-{files_}", f"{files_}-{digest}"):
        if len(name) <= 150 and is_free(name, wanted):
            break
    return check_name(name)


def is_free(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a name is nobody's, or that of the same models."""
    if name not in profiles.names():
        return True
    try:
        profile = profiles.load(name)
    except SpecdecError:
        return False
    return tuple(model for model in (profile.target, profile.draft) if model) == wanted


def names() -> list[str]:
    """All pulled pairs."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def load(name: str) -> PulledPair | None:
    """A pulled pair by name; None if there is none. Raises SpecdecError if its record is damaged."""
    if name not in names():  # a path would lead elsewhere
        return None
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise SpecdecError(
            f"cannot read {path}: {why}", f"Run specdec pull {name} again, or remove the file."
        ) from None


def save(pair: PulledPair) -> None:
    """Record a pair, all at once or not at all; raises SpecdecError if it cannot be written."""
    data = {"format": FORMAT, **{key: value for key, value in asdict(pair).items() if key != "name"}}
    write_whole(_folder() / f"{pair.name}.json", json.dumps(data, indent=1))


def removable(pair: PulledPair) -> tuple[int, list[str]]:
    """Bytes that removing a pair would free, and the names of its files whose content another pair uses."""
    others = _others(pair)
    free = sum(cache.freeable(model, file) for model, file in _own(pair, others))
    content = {(model.repo, file.digest) for model, file in others}
    return free, [file.name for model, file in _files(pair) if (model.repo, file.digest) in content]


def remove(pair: PulledPair) -> int:
    """Forget a pair and take its files out of the cache, but for those that another pair uses. Returns bytes freed."""
    try:
        freed = sum(cache.remove(model, file) for model, file in _own(pair, _others(pair)))
        (_folder() / f"{pair.name}.json").unlink()
        if pair.made_profile and profiles.is_as_saved(pair.name):
            (config_dir() / "profiles" / f"{pair.name}.yaml").unlink(missing_ok=True)
    except OSError as error:
        raise SpecdecError(f"cannot remove {error.filename}: {error.strerror}", "Mend the folder's rights.") from None
    return freed


def _files(pair: PulledPair) -> list[tuple[RemoteModel, RemoteFile]]:
    """Each file once, also where target and draft are the same."""
    return list(dict.fromkeys((model, file) for model in pair.models for file in model.files))


def _others(pair: PulledPair) -> list[tuple[RemoteModel, RemoteFile]]:
    """The files of all other pairs."""
    pairs = (readable(name) for name in names() if name != pair.name)
    return [file for other in pairs if other for file in _files(other)]


def _own(pair: PulledPair, others: list[tuple[RemoteModel, RemoteFile]]) -> list[tuple[RemoteModel, RemoteFile]]:
    """A pair's files that no other pair has at the same commit; the cache itself keeps content that others link to."""
    used = {(model.repo, model.commit, file.name) for model, file in others}
    return [(model, file) for model, file in _files(pair) if (model.repo, model.commit, file.name) not in used]


def readable(name: str) -> PulledPair | None:
    """A pair, if its record can be read: one that is damaged is as good as none."""
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
