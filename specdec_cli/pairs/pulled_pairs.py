"""Records of pulled pairs: which files of which commits they are, so that they can be listed and removed."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli import user_files
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.json_store import JsonStore, digest
from specdec_cli.pairs import profiles, references
from specdec_cli.pairs.hub import cache
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.user_files import config_dir

_File = tuple[RemoteModel, RemoteFile]


@dataclass(frozen=True, slots=True)
class PulledPair:
    """A pair in the Hub's cache, perhaps only in part. pulled: the date when that began. made_profile: whether pulling
    it created a profile. compared: whether it is complete, and the tokenizers in its files fit.
    """

    name: str
    target: RemoteModel
    draft: RemoteModel | None
    pulled: str
    made_profile: bool = False
    compared: bool = False

    def __post_init__(self) -> None:
        for model in self.models:
            names = [model.repo, model.commit, *(name for file in model.files for name in (file.name, file.digest))]
            if not model.files or any(map(references.leads_out, names)):
                raise ValueError(f"invalid names in {model.repo!r:.60}")

    @property
    def models(self) -> tuple[RemoteModel, ...]:
        return (self.target, self.draft) if self.draft else (self.target,)

    @property
    def references(self) -> tuple[str, str | None]:
        return self.target.reference, self.draft.reference if self.draft else None

    def is_whole(self) -> bool:
        return all(cache.is_whole(model, file) for model, file in self.files())

    def files(self) -> list[_File]:
        """Each file once, even if target and draft are the same."""
        return list(dict.fromkeys((model, file) for model in self.models for file in model.files))

    def paths(self) -> tuple[Path, Path | None]:
        """The first files of the target and the draft."""
        target, *draft = (cache.path_of(model, model.files[0]) for model in self.models)
        return target, draft[0] if draft else None

    def path(self, reference: str) -> Path | None:
        """A model's first file, at the pulled commit. None if the pair hasn't this model, or not all of it is here."""
        for model in self.models:
            if model.reference == reference and all(cache.is_whole(model, file) for file in model.files):
                return cache.path_of(model, model.files[0])
        return None


_PAIRS = JsonStore(
    lambda: config_dir() / "pulled", PulledPair, "Run specdec pull {name} again, or remove the file.", remade=False
)


def require_writable() -> None:
    """Raise SpecdecError if the pair can't be recorded, before gigabytes are downloaded."""
    for folder in ("pulled", "profiles"):
        user_files.require_writable(config_dir() / folder)


def check_name(name: str, fix: str = "Use letters, digits, '.', '_', '+' and '-', without a file extension.") -> str:
    """Return the name. Raises UsageError if a pair can't have it."""
    if not re.fullmatch(r"[\w][\w.+-]{0,150}", name, re.ASCII) or name.endswith((".gguf", ".yaml", ".yml", ".json")):
        raise UsageError(f"{name!r} cannot be a pair's name", fix)
    return name


def name_of(target: RemoteModel, draft: RemoteModel | None = None) -> str:
    """A default name for a pair: from its two files, with the owners or a digest if another pair has that name."""
    models = [model for model in (target, draft) if model]
    asked = tuple(model.reference for model in models)
    stems = "+".join(references.stem(model.files[0].name.rpartition("/")[2])[:60] for model in models)
    owners = "+".join(model.repo.partition("/")[0] for model in models)
    for name in (stems, f"{owners}-{stems}", f"{stems}-{digest(repr(asked), 8)}"):
        if len(name) <= 150 and is_free(name, asked):
            break
    return check_name(name, "Give it a name with --as NAME.")


def is_free(name: str, models: tuple[str, ...]) -> bool:
    """Whether a name is free: no profile has it, or one with the same models."""
    try:
        profile = profiles.load(name) if name in profiles.names() else None
    except SpecdecError:
        return False
    return profile is None or tuple(filter(None, (profile.target, profile.draft))) == models


def names() -> list[str]:
    return _PAIRS.names()


def load(name: str) -> PulledPair | None:
    """A pair; None if it doesn't exist. Raises SpecdecError if its record is damaged."""
    return _PAIRS.load(name) if name in names() else None  # the name could be a path to another file


def readable(name: str) -> PulledPair | None:
    """A pair; None if it doesn't exist or its record is damaged."""
    with suppress(SpecdecError):
        return load(name)
    return None


def require(name: str) -> PulledPair:
    """A pair. Raises UsageError if it wasn't pulled, wholly or in part, SpecdecError if its record is damaged."""
    if pair := load(name):
        return pair
    raise UsageError(f"no pair {name!r} has been pulled", user_files.suggest(name, names(), "Pulled pairs"))


def save(pair: PulledPair) -> None:
    """Record a pair. Raises SpecdecError if it can't be written."""
    _PAIRS.save(pair.name, pair)


def removable(pair: PulledPair) -> tuple[int, list[str]]:
    """The bytes that removing a pair would free, and its files whose content another pair uses. Raises SpecdecError if
    another pair's record is damaged.
    """
    content = {(model.repo, file.digest) for model, file in _files_of_others(pair)}
    used = [file.name for model, file in pair.files() if (model.repo, file.digest) in content]
    return sum(cache.freeable(model, file) for model, file in _exclusive_files(pair)), used


def unused_after(name: str, new: list[RemoteModel]) -> dict[str, int]:
    """The files of a pair, with their bytes, that no pair uses once it has new models."""
    pairs = {each: pair for each in names() if (pair := readable(each))}
    old = pairs.pop(name).files() if name in pairs else []
    kept = {(model.repo, file.digest) for pair in pairs.values() for model, file in pair.files()}
    kept |= {(model.repo, file.digest) for model in new for file in model.files}
    own = [(model, file) for model, file in old if (model.repo, file.digest) not in kept]
    return {f"{model.repo}/{file.name}": size for model, file in own if (size := cache.freeable(model, file))}


def remove(pair: PulledPair) -> int:
    """Remove a pair's record and its files, except those that another pair uses. Returns the bytes freed. Raises
    SpecdecError if something can't be removed, or if another pair's record is damaged.
    """
    try:
        freed = sum(cache.remove(model, file) for model, file in _exclusive_files(pair))
        forget(pair)
    except OSError as error:
        raise SpecdecError(f"cannot remove {error.filename}: {error.strerror}", "Check its permissions.") from None
    return freed


def forget(pair: PulledPair) -> None:
    """Remove a pair's record, and its profile if pulling it created that. Raises OSError."""
    _PAIRS.path(pair.name).unlink()
    if pair.made_profile and profiles.is_as_saved(pair.name, *pair.references):
        (config_dir() / "profiles" / f"{pair.name}.yaml").unlink(missing_ok=True)


def _files_of_others(pair: PulledPair) -> list[_File]:
    pairs = [load(name) for name in names() if name != pair.name]
    return [file for other in pairs if other for file in other.files()]


def _exclusive_files(pair: PulledPair) -> list[_File]:
    """A pair's files that no other pair has at the same commit. `cache.remove` keeps content that others link to."""
    used = {(model.repo, model.commit, file.name) for model, file in _files_of_others(pair)}
    return [(model, file) for model, file in pair.files() if (model.repo, model.commit, file.name) not in used]
