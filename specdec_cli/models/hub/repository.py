"""What a repository on the Hub holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.models.hub.failures import patiently, reaching
from specdec_cli.models.references import Reference, select

_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. digest: its SHA-256, or git's SHA-1 if it is small; the cache knows it by this."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The files of a model at one commit. licence: as the repository states it, or empty."""

    reference: str
    repo: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False
    licence: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def resolve(reference: Reference) -> RemoteModel:
    """Ask the Hub, in one request, which files a reference means and at which commit.

    Raises DownloadError if there is no such model or the Hub cannot be asked.
    """
    from huggingface_hub import HfApi, constants

    with reaching(reference.repo):
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        info = patiently(lambda: HfApi().model_info(reference.repo, files_metadata=True, timeout=timeout))
    found = {file.rfilename: file for file in info.siblings or []}
    files = []
    for name in select(reference, found):
        file = found[name]
        size = file.lfs.size if file.lfs else file.size
        digest = str(file.lfs.sha256 if file.lfs else file.blob_id)
        # The cache names folders and files after these: they must be what they claim.
        if size is None or not _HEX.fullmatch(digest) or not _HEX.fullmatch(str(info.sha)):
            raise DownloadError(
                f"the Hub does not say how large {name} is or what its checksum is", "Check HF_ENDPOINT."
            )
        files.append(RemoteFile(name, size, digest))
    licence = str(getattr(info.card_data, "license", None) or "")
    return RemoteModel(str(reference), reference.repo, str(info.sha), tuple(files), bool(info.gated), licence)
