"""Finds models by name: a local file, a profile, or a file on the Hub, whose header is read with range requests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import UsageError
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import read_header, read_model
from specdec_cli.pairs import references
from specdec_cli.pairs.hub import cache, repository
from specdec_cli.pairs.hub.repository import RemoteModel
from specdec_cli.pairs.profiles import model_name
from specdec_cli.user_files import expanded


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model and its header. remote: on the Hub; otherwise path: on this machine."""

    name: str
    header: Header
    remote: RemoteModel | None
    path: Path | None


def read_local(name: str) -> tuple[Path, Header]:
    """The path and header of a local model, or of a profile's draft. Raises the errors of `read_source`, and UsageError
    if it isn't local.
    """
    name = model_name(name, "draft")
    source = read_source(name, [], here_first=True)
    if source.path is None:
        raise UsageError(f"{name} is not on this machine yet", f"Download it: specdec pull --target {name}")
    return source.path, source.header


def read_source(name: str, notes: list[str], here_first: bool) -> ModelSource:
    """Read a model's header, for one on the Hub with range requests.

    here_first: whether to use a copy in the Hub's cache. notes: notes for the user are added to it.
    Raises UsageError if there is no such model, DownloadError if the Hub fails, SpecdecError if the file isn't a model.
    """
    reference = references.parse(name)
    if reference is None and not name.endswith(".gguf") and not os.path.exists(name):  # noqa: PTH110  # as in `parse`
        raise UsageError(
            f"{name!r} is neither a file, nor a profile, nor a model on the Hub",
            "Write PATH.gguf, REPO:QUANT, REPO/FILE.gguf or a profile's name (specdec ls).",
        )
    path = expanded(name) if reference is None else cache.find(reference) if here_first else None
    if reference is None or path:
        return ModelSource(name, read_header(path or Path(name)), None, path)
    remote = repository.resolve(reference)
    return ModelSource(name, read_model(remote.files[0].name, repository.opener(remote, notes)), remote, None)
