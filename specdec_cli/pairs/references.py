"""References to models on the Hub, `repo:quant` or `repo/file.gguf`, and the files they mean."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.gguf.reader import first_part, part_names

_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_REFERENCE = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?::(?P<quant>[\w.-]+)|/(?P<file>[^:\\]+\.gguf))?", re.ASCII)
_ADDRESS = re.compile(r"^https://(huggingface\.co|hf\.co)/")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w{0,15}|TQ\d_\d|F16|F32|FP16|FP32|BF16|MXFP4(?:_MOE)?|NVFP4))$", re.IGNORECASE
)
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_MAX_NAME = 250  # characters
_MAX_SHOWN = 20
_NOT_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # GGUF files that accompany a language model
_HEADS = re.compile(r"^mtp-", re.IGNORECASE)
"""Files of next-token layers, which draft for another model in the repository."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the Hub: a repository with a quantisation or a file; without either, its only model."""

    repo: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else f"{self.repo}/{self.file}" if self.file else self.repo


def parse(text: str) -> Reference | None:
    """Parse what a user typed: None for a local file, otherwise as `parse_remote`."""
    return None if os.path.isfile(text) else parse_remote(text)  # noqa: PTH113  # Path.is_file raises on long names


def parse_remote(text: str) -> Reference | None:
    """Parse a reference, or the address of a page or a file on the Hub. Returns None for profiles and all else."""
    if address := _ADDRESS.match(text):
        path = re.split("[?#]", text[address.end() :])[0].rstrip("/").removesuffix("/tree/main")
        text = unquote(path)
    found = _REFERENCE.fullmatch(text.replace("/resolve/main/", "/").replace("/blob/main/", "/"))
    if found is None or (text.endswith(".gguf") and found["file"] is None):
        return None
    if any(part in ("", ".", "..") for part in found[0].split("/")) or ".." in found["repo"]:
        return None
    return Reference(found["repo"], found["quant"] or "", found["file"] or "")


def quant_of(name: str) -> str:
    """The quantisation at the end of a file's or its folder's name, in capitals; empty if neither has one."""
    folder = name.rpartition("/")[0]
    found = _QUANT.search(stem(name)) or _QUANT.search(folder)
    return found[1].upper() if found else ""


def stem(name: str) -> str:
    """A file's name without its extension and part number."""
    return _PART.sub("", name.removesuffix(".gguf"))


def select(reference: Reference, names: Iterable[str]) -> list[str]:
    """The files of a model, in order. Raises DownloadError, with the choices, unless exactly one model matches."""
    names = {name for name in names if not leads_out(name)}
    own = [name for name in names if name.endswith(".gguf") and not _NOT_MODELS.search(name.rpartition("/")[2])]
    models = {first_part(name) for name in own}
    if not models:
        raise DownloadError(f"there is no GGUF file in {reference.repo}", "Name a repository with GGUF files.")
    whole = models - set(heads_among(models)) or models
    if reference.file:
        chosen = models & {first_part(reference.file)}
    elif reference.quant:
        chosen = {name for name in models if quant_of(name) == reference.quant.upper()}
        chosen = chosen & whole or chosen
    else:
        chosen = whole
    if not chosen:
        what = reference.file or f"quantisation {reference.quant}"
        raise DownloadError(f"there is no {what} in {reference.repo}", f"Available: {_listed(reference, models)}.")
    if len(chosen) > 1:
        which = f"more than one file of quantisation {reference.quant}" if reference.quant else "more than one model"
        raise DownloadError(f"there is {which} in {reference.repo}", f"Name one: {_listed(reference, chosen)}.")
    parts = part_names(chosen.pop())
    if missing := [name for name in parts if name not in names]:
        what = f"{reference.repo} lacks {missing[0]}, a part of the model"
        raise DownloadError(what, "Choose another quantisation or repository.")
    return parts


def heads_among(names: Iterable[str]) -> list[str]:
    """The files that contain only heads."""
    return sorted(name for name in names if name.endswith(".gguf") and _HEADS.search(name.rpartition("/")[2]))


def leads_out(name: str) -> bool:
    """Whether a file name from the Hub would lead out of its folder, or isn't valid."""
    parts = name.split("/")
    windows = "\\" in name or ":" in name  # on Windows, C:x.gguf is on a drive and a:b.gguf in the file a
    return len(name) > _MAX_NAME or not name.isprintable() or windows or not {"", ".", ".."}.isdisjoint(parts)


def _listed(reference: Reference, models: set[str]) -> str:
    """References to models: by quantisation, or by file if several have the same one."""
    quants = {name: quant_of(name) for name in models}
    ambiguous = {"", *(quant for quant, count in Counter(quants.values()).items() if count > 1)}
    names = sorted(f"/{name}" if quant in ambiguous else f":{quant}" for name, quant in quants.items())
    more = [f"{len(names) - _MAX_SHOWN:,} more"] if len(names) > _MAX_SHOWN else []
    return ", ".join([reference.repo + name for name in names[:_MAX_SHOWN]] + more)
