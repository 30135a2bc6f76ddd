"""Lists the pairs on this machine and in profiles, and shows one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdec_cli import user_files
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.head_files import head_of
from specdec_cli.gguf.reader import part_names, read_header
from specdec_cli.pairs import profiles, pulled_pairs, references, speeds
from specdec_cli.pairs.config_layers import settings_of
from specdec_cli.pairs.hub import cache
from specdec_cli.pairs.profiles import Profile
from specdec_cli.pairs.speeds import Speed


@dataclass(frozen=True, slots=True)
class PairSummary:
    """A pair in a list. size: bytes; for a pair that isn't here, from its profile. pulled: the date."""

    name: str
    target: str
    draft: str | None
    description: str
    fits_gb: float | None
    size: int | None
    here: Literal["yes", "in part", "no"]
    pulled: str | None
    paths: tuple[str | None, ...]
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class PairList:
    """All pairs. notes: about profiles and records that can't be read."""

    pairs: tuple[PairSummary, ...]
    cache: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairDetails:
    """Everything about one pair."""

    profile: Profile
    summary: PairSummary
    heads: str = ""
    """The drafter for the target's own heads; empty if it has none."""


def list_pairs(here_only: bool = False) -> PairList:
    """All pairs: those on this machine first, then by the memory of suitable machines and by size."""
    pairs, notes = [], []
    loaders: list[tuple[list[str], Callable[[str], object]]] = [
        (profiles.names(), lambda name: pairs.append(_summary(_sound(name)))),
        (pulled_pairs.names(), pulled_pairs.load),
    ]
    for names, load in loaders:
        for name in names:
            try:
                load(name)
            except SpecdecError as error:  # one broken file must not hide the others
                notes.append(f"{error}. {error.hint}")
            except OSError as error:
                notes.append(f"cannot read {error.filename}: {error.strerror}. It belongs to {name}.")
    kept = [pair for pair in pairs if pair.here == "yes" or not here_only]
    kept.sort(key=lambda pair: (pair.here != "yes", pair.fits_gb or 0, pair.size or 0, pair.name))
    return PairList(tuple(kept), str(cache.cache_dir()), tuple(notes))


def pair_details(name: str) -> PairDetails:
    """A profile and its state on this machine. Raises UsageError if it doesn't exist or is invalid."""
    profile = _sound(name)
    summary = _summary(profile)
    heads = ""
    with suppress(SpecdecError):  # a damaged file
        heads = head_of(read_header(Path(summary.paths[0]))) if summary.paths and summary.paths[0] else ""
    return PairDetails(profile, summary, heads)


def _sound(name: str) -> Profile:
    """A profile by name. Raises UsageError if it doesn't exist, or its settings are invalid."""
    profile = profiles.load(name)
    settings_of(profile)
    return profile


def _summary(profile: Profile) -> PairSummary:
    models = [model for model in (profile.model("target"), profile.model("draft")) if model]
    pulled = pulled_pairs.readable(profile.name)
    paths = [(pulled and pulled.path(model)) or _local_path(model) for model in models]  # `run` uses the pulled commit
    here = [path for path in paths if path]
    whole = len(here) == len(paths)
    begun = here or (pulled and any(cache.begun(*file) for file in pulled.files()))
    stated = int(profile.download_gb * 1e9) if profile.download_gb else None
    return PairSummary(
        name=profile.name,
        target=profile.target,
        draft=profile.draft,
        description=profile.description,
        fits_gb=profile.fits_gb,
        size=sum(map(_file_size, here)) if whole else stated,
        here="yes" if whole else "in part" if begun else "no",
        pulled=pulled.pulled if pulled and whole else None,
        paths=tuple(str(path) if path else None for path in paths),
        speed=speeds.last_speed(here[0], here[1]) if len(here) == 2 else None,
    )


def _local_path(model: str) -> Path | None:
    if reference := references.parse(model):
        return cache.find(reference)
    return Path(model) if user_files.is_file(Path(model)) else None


def _file_size(path: Path) -> int:
    """Bytes of a model, including all parts of a split one."""
    parts = [path.with_name(name) for name in part_names(path.name)]
    return sum(part.stat().st_size for part in parts if part.is_file())
