"""Vocabularies in GGUF headers: a model's own, the overlap of two, and reduced ones.

A draft with a reduced vocabulary has only a part of its target's tokens, so that its passes stay cheap (FR-Spec, arXiv
2502.14856). It has no tokenizer: its file lists which of the target's tokens it has.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.gguf.header import Header, StringArray, damaged, shown

_NORMAL, UNUSED, BYTE = 1, 5, 6
_PADDING = re.compile(rb"\[PAD\d+\]")  # padding by the converter
_RESERVED = re.compile(
    rb"<\|?(dummy|pad|extra|reserved|unused|(image|audio|video)_(soft_token|token|pad))[^>]*>", re.IGNORECASE
)
_EMITTED = ("bos", "eos", "eot", "eom")

# llama.cpp's defaults for what a file doesn't state: src/llama-vocab.cpp of the bundled version.
_MODELS_ADDING_BOS = {"llama", "bert"}
_MODELS_ADDING_EOS = {"t5"}
_PRE_TOKENIZERS_ADDING_BOS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
}

_BYTE_LEVEL = ("gpt2", "hybriddna")
"""Tokenizers that write each byte as one character, by GPT-2's table."""
_PIECES = ("llama", "gemma4")
"""Tokenizers that write spaces as U+2581."""
_BYTE_NAME = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

IDS, READS, DIGEST = (f"specdec.vocabulary.{name}" for name in ("ids", "reads", "tokens_sha256"))
NO_TOKENIZER = ("none", "no_vocab")
"""Values of `tokenizer.ggml.model` in a file without a tokenizer."""


def tokenizer_digest(header: Header) -> str:
    """A digest of everything in a header that affects tokenization."""
    sha = hashlib.sha256()
    for key, value in sorted(header.metadata.items()):
        if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"):
            data = _content(value)
            sha.update(f"{key} {len(data)} ".encode())
            sha.update(data)
    return sha.hexdigest()


def _content(value: Any) -> bytes:
    if isinstance(value, list):  # nested arrays
        return b"".join(b"%d " % len(part) + part for part in map(_content, value))
    return value.raw if isinstance(value, StringArray) else np.asarray(value).tobytes()


class Vocabulary:
    """A header's vocabulary. tokens: empty if the header has no tokenizer."""

    def __init__(self, header: Header) -> None:
        self.header = header
        tokens = self.field("tokens")
        self.tokens = tokens if isinstance(tokens, StringArray) else StringArray(b"", 0)
        # A missing or short table of types counts as normal tokens, as in llama.cpp.
        self.types = np.full(len(self), _NORMAL)
        given = self.field("token_type")
        if isinstance(given, np.ndarray) and given.dtype.kind in "iu":
            known = given[: len(self)]
            self.types[: known.size] = known
        named = [self.field(f"{name}_token_id") for name in _EMITTED]
        self._named = {token for token in named if isinstance(token, int)}

    def __len__(self) -> int:
        return self.tokens.count

    def field(self, key: str) -> Any:
        """A metadata value of the tokenizer, of any type; None if it is missing."""
        return self.header.metadata.get(f"tokenizer.ggml.{key}")

    def text(self, token: int) -> str:
        return quoted(self.tokens.values[token])

    def reserved(self, token: int) -> bool:
        """Whether no model emits this token, by its type or, unless it is a normal token, its name."""
        if token in self._named:  # BOS, EOS and the like
            return False
        kind, text = self.types[token], self.tokens.values[token]
        named = _PADDING.fullmatch(text) or (kind != _NORMAL and _RESERVED.fullmatch(text))
        return bool(kind == UNUSED or named)

    def adds(self, name: str) -> bool:
        """Whether llama.cpp adds this token at the start (bos) or end (eos) of a text."""
        given = self.field(f"add_{name}_token")
        model, pre = str(self.field("model")), pre_tokenizer(self.header)
        if name == "bos" and pre == "gemma4":
            return True
        if isinstance(given, bool):
            return given
        if name == "bos":
            return model in _MODELS_ADDING_BOS or (model == "gpt2" and pre in _PRE_TOKENIZERS_ADDING_BOS)
        return name == "eos" and model in _MODELS_ADDING_EOS


def pre_tokenizer(header: Header) -> str:
    """The name of the pre-tokenizer that llama.cpp uses; "default" if the file names none."""
    if str(header.metadata.get("tokenizer.ggml.model")) == "gemma4":  # files of this kind rarely name it
        return "gemma4"
    return str(header.metadata.get("tokenizer.ggml.pre", "default"))


def quoted(text: bytes) -> str:
    """The text of a token or a merge, quoted for a message."""
    return repr(text.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True, eq=False)
class TokenOverlap:
    """target, draft: the bytes of each token, or the name of a control token; empty if no model emits it. to_target:
    (n_vocab of the draft,), for each draft token the target's token with the same bytes, or -1.
    """

    target: tuple[bytes, ...]
    draft: tuple[bytes, ...]
    to_target: NDArray[np.int64]

    def __str__(self) -> str:
        shared = int((self.to_target >= 0).sum())
        return f"{shared:,} of its {self.to_target.size:,} tokens are the target's, too"

    @property
    def share(self) -> float:
        """The share of the draft's tokens that the target also has."""
        return float((self.to_target >= 0).mean())


def token_overlap(target: Vocabulary, draft: Vocabulary) -> TokenOverlap | None:
    """The overlap of two vocabularies; None if the bytes of one's tokens are unknown."""
    mine, theirs = _meanings(target), _meanings(draft)
    if mine is None or theirs is None:
        return None
    ids: dict[bytes, int] = {}
    for token, meaning in enumerate(mine):
        ids.setdefault(meaning, token)
    seen = {b""}
    to_target = np.full(len(theirs), -1)
    for token, meaning in enumerate(theirs):
        if meaning not in seen:  # the first of several with the same bytes
            seen.add(meaning)
            to_target[token] = ids.get(meaning, -1)
    return TokenOverlap(tuple(mine), tuple(theirs), to_target)


def _meanings(vocabulary: Vocabulary) -> list[bytes] | None:
    model = vocabulary.field("model")
    if not (len(vocabulary) and isinstance(model, str) and model in (*_BYTE_LEVEL, *_PIECES)):
        return None
    read = _from_byte_level if model in _BYTE_LEVEL else lambda text: text.replace("\u2581".encode(), b" ")
    meanings: list[bytes] = []
    for kind, text in zip(vocabulary.types.tolist(), vocabulary.tokens.values, strict=True):
        byte = _BYTE_NAME.fullmatch(text) if kind == BYTE else None
        if kind == UNUSED:
            meanings.append(b"")
        else:
            meanings.append(bytes([int(byte[1], 16)]) if byte else read(text) if kind == _NORMAL else text)
    return meanings


def _from_byte_level(text: bytes) -> bytes:
    table = _byte_characters()
    try:
        return bytes(table[character] for character in text.decode())
    except (KeyError, UnicodeDecodeError):  # an added token, stored as plain text
        return text


@cache
def _byte_characters() -> dict[str, int]:
    """GPT-2's table, character -> byte: printable bytes are themselves, the others follow in order from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True, slots=True, eq=False)
class ReducedVocabulary:
    """ids: (n_vocab of the draft,), draft token -> target token. reads: (n_vocab of the target,), target token -> the
    token that the draft reads instead. digest: of the target's tokens.
    """

    ids: NDArray[np.intp]
    reads: NDArray[np.intp]
    digest: str

    def __str__(self) -> str:
        return f"{self.ids.size:,} of the target's {self.reads.size:,} tokens"

    def is_of(self, target: Header) -> bool:
        """Whether it was made for a target with exactly these tokens."""
        tokens = target.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, StringArray) or tokens.count != self.reads.size:
            return False
        return tokens_digest(tokens) == self.digest


def tokens_digest(tokens: StringArray) -> str:
    """A digest of a target's list of tokens."""
    return hashlib.sha256(tokens.raw).hexdigest()


def is_reduced(header: Header) -> bool:
    return IDS in header.metadata


def read_reduced(header: Header) -> ReducedVocabulary | None:
    """A header's reduced vocabulary; None if it has none. Raises SpecdecError if it is inconsistent."""
    if not is_reduced(header):
        return None
    reads = _numbers(header, READS)
    ids = _numbers(header, IDS)
    _require_below(header, IDS, ids, reads.size)
    _require_below(header, READS, reads, ids.size)
    if np.unique(ids).size < ids.size:
        raise damaged(header.name, f"{IDS} names a token twice")
    if header.scalar("tokenizer.ggml.model") not in NO_TOKENIZER:
        raise damaged(header.name, f"it has {IDS} and a tokenizer")
    if (size := header.setting("vocab_size")) != ids.size:
        raise damaged(header.name, f"it claims {shown(size)} tokens, but {IDS} names {ids.size:,}")
    digest = header.metadata.get(DIGEST)
    if not isinstance(digest, str):
        raise damaged(header.name, f"{DIGEST} is {shown(digest)}")
    return ReducedVocabulary(ids.astype(np.intp), reads.astype(np.intp), digest)


def _numbers(header: Header, key: str) -> NDArray[Any]:
    value = header.metadata.get(key)
    if not (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu" and value.size):
        raise damaged(header.name, f"{key} is not an array of token ids")
    return value


def _require_below(header: Header, key: str, ids: NDArray[Any], limit: int) -> None:
    for worst in (int(ids.min()), int(ids.max())):
        if not 0 <= worst < limit:
            raise damaged(header.name, f"{key} names token {worst:,} of {limit:,}")
