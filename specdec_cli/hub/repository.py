"""What a repository on the Hub holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.hub.failures import hub_errors, with_retries
from specdec_cli.models.references import Reference, select

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

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

    def url(self, file: RemoteFile) -> str:
        from huggingface_hub import constants, hf_hub_url

        return hf_hub_url(self.repo, file.name, revision=self.commit, endpoint=constants.ENDPOINT)


def resolve(reference: Reference) -> RemoteModel:
    """Ask the Hub, in one request, which files a reference means and at which commit. Raises DownloadError."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError

    with hub_errors(reference.repo):
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        try:
            info = with_retries(lambda: HfApi().model_info(reference.repo, files_metadata=True, timeout=timeout))
            siblings = {str(file.rfilename): file for file in info.siblings or []}
            files = tuple(_listed(name, siblings[name]) for name in select(reference, siblings))
            if not _HEX.fullmatch(str(info.sha)):
                raise ValueError("the commit")
        except UnicodeEncodeError:
            raise DownloadError("the token in HF_TOKEN is none", "It must be plain letters and digits.") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, OSError | HFValidationError):  # some of the Hub's refusals are ValueErrors too
                raise
            what = f"{constants.ENDPOINT} does not answer as a Hub does"
            raise DownloadError(what, "Check the network and HF_ENDPOINT.") from None
    licence = str(getattr(info.card_data, "license", None) or "")
    return RemoteModel(str(reference), reference.repo, str(info.sha), files, bool(info.gated), licence)


def _listed(name: str, file: RepoSibling) -> RemoteFile:
    """One file as the Hub lists it. Raises ValueError if it cannot be: the cache names things after what is here."""
    size = file.lfs.size if file.lfs else file.size
    digest = str(file.lfs.sha256 if file.lfs else file.blob_id)
    if type(size) is not int or not 0 < size < 2**50 or not _HEX.fullmatch(digest):
        raise ValueError(name)
    return RemoteFile(name, size, digest)
