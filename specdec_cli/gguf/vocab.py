"""The parts of a model's tokenizer, read from its GGUF header."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np

from specdec_cli.gguf.header import Header, StringArray

_NORMAL, _UNUSED = 1, 5
_PADDING = re.compile(rb"\[PAD\d+\]")  # what the converter fills a vocabulary up with
_RESERVED = re.compile(
    rb"<\|?(dummy|pad|extra|reserved|unused|(image|audio|video)_(soft_token|token|pad))[^>]*>", re.IGNORECASE
)
_EMITTED = ("bos", "eos", "eot", "eom")

# What llama.cpp assumes where a file does not say: src/llama-vocab.cpp of the bundled version.
_MODELS_ADDING_BOS = {"llama", "bert"}
_MODELS_ADDING_EOS = {"t5"}
_PRE_TOKENIZERS_ADDING_BOS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
}


def digest(header: Header) -> str:
    """A digest of everything in a header that decides how text becomes tokens."""
    sha = hashlib.sha256()
    for key, value in sorted(header.metadata.items()):
        if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"):
            data = _content(value)
            sha.update(f"{key} {len(data)} ".encode())
            sha.update(data)
    return sha.hexdigest()


def _content(value: Any) -> bytes:
    if isinstance(value, list):  # arrays, each of its own length
        return b"".join(b"%d " % len(part) + part for part in map(_content, value))
    return value.raw if isinstance(value, StringArray) else np.asarray(value).tobytes()


class Vocabulary:
    """A header's tokenizer, its parts read once. tokens: empty where the header has no tokenizer."""

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
        """A value of the tokenizer's metadata, which may be anything; None if it is missing."""
        return self.header.metadata.get(f"tokenizer.ggml.{key}")

    def text(self, token: int) -> str:
        return quoted(self.tokens.values[token])

    def reserved(self, token: int) -> bool:
        """Whether no model emits this token: by its type, or its name if it is no normal token."""
        if token in self._named:  # it begins or ends a text
            return False
        kind, text = self.types[token], self.tokens.values[token]
        named = _PADDING.fullmatch(text) or (kind != _NORMAL and _RESERVED.fullmatch(text))
        return bool(kind == _UNUSED or named)

    def adds(self, name: str) -> bool:
        """Whether texts begin (bos) or end (eos) with this token, as llama.cpp decides it."""
        given = self.field(f"add_{name}_token")
        model, pre = (str(self.field(key)) for key in ("model", "pre"))
        if name == "bos" and pre == "gemma4":
            return True
        if isinstance(given, bool):
            return given
        if name == "bos":
            return model in _MODELS_ADDING_BOS or (model == "gpt2" and pre in _PRE_TOKENIZERS_ADDING_BOS)
        return name == "eos" and model in _MODELS_ADDING_EOS


def quoted(text: bytes) -> str:
    """The text of a token or a merge for a sentence."""
    return repr(text.decode("utf-8", "replace"))
