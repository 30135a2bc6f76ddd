"""Tokens that two vocabularies have in common: those that stand for the same bytes, whatever their ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specdec_cli.gguf.vocab import Vocabulary

_BYTE_LEVEL = ("gpt2", "hybriddna")
"""Tokenizers that write each byte as one character (GPT-2's table), and those that write spaces as U+2581."""
_PIECES = ("llama", "gemma4")
_NORMAL, _CONTROL, _UNUSED, _BYTE = 1, 3, 5, 6
_BYTE_NAME = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, eq=False)
class TokenOverlap:
    """target, draft: the bytes of each token, the name of a control token; empty where no model emits it. to_target:
    (n_vocab of the draft,), of each of its tokens the target's with the same bytes; or -1.
    """

    target: tuple[bytes, ...]
    draft: tuple[bytes, ...]
    to_target: NDArray[np.int64]

    def __str__(self) -> str:
        shared = int((self.to_target >= 0).sum())
        return f"{shared:,} of its {self.to_target.size:,} tokens are the target's, too"

    @property
    def share(self) -> float:
        """Of the draft's tokens, how many the target has, too."""
        return float((self.to_target >= 0).mean())


def token_overlap(target: Vocabulary, draft: Vocabulary) -> TokenOverlap | None:
    """What two vocabularies share; None if the bytes of one's tokens are not known."""
    mine, theirs = _meanings(target), _meanings(draft)
    if mine is None or theirs is None:
        return None
    ids: dict[bytes, int] = {}
    for token, meaning in enumerate(mine):
        ids.setdefault(meaning, token)
    seen = {b""}
    to_target = np.full(len(theirs), -1)
    for token, meaning in enumerate(theirs):
        if meaning not in seen:  # of two with the same bytes the first
            seen.add(meaning)
            to_target[token] = ids.get(meaning, -1)
    return TokenOverlap(tuple(mine), tuple(theirs), to_target)


def _meanings(vocabulary: Vocabulary) -> list[bytes] | None:
    model = vocabulary.field("model")
    if not (len(vocabulary) and isinstance(model, str) and model in (*_BYTE_LEVEL, *_PIECES)):
        return None
    read = _from_byte_level if model in _BYTE_LEVEL else _from_pieces
    meanings: list[bytes] = []
    for kind, text in zip(vocabulary.types.tolist(), vocabulary.tokens.values, strict=True):
        byte = _BYTE_NAME.fullmatch(text) if kind == _BYTE else None
        if kind == _UNUSED:
            meanings.append(b"")
        else:
            meanings.append(bytes([int(byte[1], 16)]) if byte else read(text) if kind == _NORMAL else text)
    return meanings


def _from_pieces(text: bytes) -> bytes:
    return text.replace("\u2581".encode(), b" ")


def _from_byte_level(text: bytes) -> bytes:
    table = _byte_characters()
    try:
        return bytes(table[character] for character in text.decode())
    except (KeyError, UnicodeDecodeError):  # a token that was added as it is
        return text


@cache
def _byte_characters() -> dict[str, int]:
    """GPT-2's character of each byte: printable ones are themselves, the others come after U+0100 in their order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
