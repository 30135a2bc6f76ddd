"""The tokenizer of both models: byte-level BPE, in a form that llama.cpp cuts text by in exactly the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
"""Id 0: the beginning of every text, and its end."""

PRE = "qwen2"
"""llama.cpp's name for how text is cut before merging (tokenizer.ggml.pre)."""

_CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Qwen2's rule, made for code: digits one by one, a dot or bracket may join the word after it, a line's end what
closes the line, and indentation is a piece of its own."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF file holds of a tokenizer. tokens: in the printable form of byte-level BPE, by id."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """A BPE tokenizer of exactly `size` tokens. Raises ValueError if the texts do not yield so many merges."""
    tokenizer = _empty()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"the texts yield {tokenizer.get_vocab_size()} tokens, not {size}: take more text")
    return tokenizer


def _empty() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Tokens by id, and merges in their order."""
    ids = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return Vocabulary(
        tuple(sorted(ids, key=ids.__getitem__)),
        tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges),
    )


def byte_lengths(tokenizer: Tokenizer) -> list[int]:
    """How many bytes of text each token stands for; none for the end of a text."""
    return [0 if token == END else len(token) for token in vocabulary(tokenizer).tokens]


def encode(tokenizer: Tokenizer, texts: Iterable[str], at_once: int = 512) -> Iterator[list[int]]:
    """Token ids of each text, after an END. Special tokens' names in a text are text like any other."""
    tokenizer.encode_special_tokens = True
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == at_once:
            yield from ([0, *found.ids] for found in tokenizer.encode_batch(batch, add_special_tokens=False))
            batch = []
    yield from ([0, *found.ids] for found in tokenizer.encode_batch(batch, add_special_tokens=False))
