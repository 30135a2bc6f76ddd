"""From what names a model (a path, `repo:quant`, a profile) to its file on this machine."""

from __future__ import annotations

from pathlib import Path

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.hub import cache
from specdec_cli.models import references


def locate(name: str, command: str) -> Path:
    """The local file of a model, of a split one the first.

    Raises DownloadError if a model of the Hub has not been downloaded. command: what would download it.
    """
    reference = references.parse(name)
    if reference is None:
        return Path(name)
    if path := cache.find(reference):
        return path
    raise DownloadError(f"{reference} is not on this machine yet", f"Download it: {command}")
