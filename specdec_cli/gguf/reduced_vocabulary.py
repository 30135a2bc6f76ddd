"""A draft model with a part of its target's tokens, so that its pass stays cheap beside a large vocabulary (FR-Spec,
arXiv 2502.14856). It has no tokenizer: its file says which of the target's tokens are its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.gguf.header import Header, StringArray, damaged, shown

IDS, READS, DIGEST = (f"specdec.vocabulary.{name}" for name in ("ids", "reads", "tokens_sha256"))
NO_TOKENIZER = ("none", "no_vocab")
"""What `tokenizer.ggml.model` is in a file without one."""


@dataclass(frozen=True, slots=True, eq=False)
class ReducedVocabulary:
    """ids: (n_vocab of the draft,), of each of its tokens the target's. reads: (n_vocab of the target,), of each of the
    target's tokens, as which of its own the draft reads it. digest: of the target's tokens.
    """

    ids: NDArray[np.intp]
    reads: NDArray[np.intp]
    digest: str

    def __str__(self) -> str:
        return f"{self.ids.size:,} of the target's {self.reads.size:,} tokens"

    def is_of(self, target: Header) -> bool:
        """Whether it was made for a target with these very tokens."""
        tokens = target.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, StringArray) or tokens.count != self.reads.size:
            return False
        return digest_of(tokens) == self.digest


def digest_of(tokens: StringArray) -> str:
    """What a target's list of tokens is known by."""
    return hashlib.sha256(tokens.raw).hexdigest()


def is_reduced(header: Header) -> bool:
    return IDS in header.metadata


def read(header: Header) -> ReducedVocabulary | None:
    """What a header says of it; None if it is no such draft. Raises SpecdecError if it contradicts itself."""
    if not is_reduced(header):
        return None
    reads = _numbers(header, READS)
    ids = _numbers(header, IDS)
    _require_below(header, IDS, ids, reads.size)
    _require_below(header, READS, reads, ids.size)
    if np.unique(ids).size < ids.size:
        raise damaged(header.name, f"{IDS} names a token twice")
    if header.metadata.get("tokenizer.ggml.model") not in NO_TOKENIZER:
        raise damaged(header.name, f"it has {IDS} and a tokenizer")
    if (size := header.setting("vocab_size")) != ids.size:
        raise damaged(header.name, f"it claims {shown(size)} tokens, and {IDS} names {ids.size:,}")
    digest = header.metadata.get(DIGEST)
    if not isinstance(digest, str):
        raise damaged(header.name, f"{DIGEST} is {shown(digest)}")
    return ReducedVocabulary(ids.astype(np.intp), reads.astype(np.intp), digest)


def _numbers(header: Header, key: str) -> NDArray[Any]:
    value = header.metadata.get(key)
    if not (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu" and value.size):
        raise damaged(header.name, f"{key} is no array of token ids")
    return value


def _require_below(header: Header, key: str, ids: NDArray[Any], limit: int) -> None:
    for worst in (int(ids.min()), int(ids.max())):
        if not 0 <= worst < limit:
            raise damaged(header.name, f"{key} names token {worst:,} of {limit:,}")
