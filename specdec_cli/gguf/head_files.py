"""Files of heads, which draft from a target's hidden rows: detects their kind, and reads Medusa heads.

Medusa (Cai et al., arXiv 2401.10774): from a hidden row h, head k computes x = h + silu(block h + bias), and output x,
the logits of the token k places after the next one. The shapes are validated, because ggml crashes on wrong ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import IncompatiblePair, SpecdecError
from specdec_cli.gguf.header import NOT_COMPUTED_WITH, TYPES, Header, Tensor, damaged, shown
from specdec_cli.gguf.tokenizer_comparison import Comparison
from specdec_cli.gguf.vocabulary import Vocabulary

_MAX_HEADS, _MAX_WIDTH = 64, 1 << 20
_NUMBERS = {name: number for number, (name, *_) in TYPES.items()}
_NO_MATRIX = NOT_COMPUTED_WITH | {"I32"}
"""Types that ggml can't multiply."""
PARTS = ("block.weight", "block.bias", "output.weight")
Weight = tuple[int, tuple[int, ...], NDArray[np.uint8]]
"""The ggml type number, the shape as in the file, the bytes."""


def head_of(header: Header) -> str:
    """The drafter for a file's heads: mtp, eagle3 or medusa; empty without heads."""
    if header.architecture in ("eagle3", "medusa"):
        return header.architecture
    # Some converters omit the layers that the header mentions.
    there = header.count("nextn_predict_layers") and any(".nextn.eh_proj" in name for name in header.by_name)
    return "mtp" if there else ""


def head_alone(header: Header) -> str:
    """The same for a file that contains only heads, which draft for the model in another file; empty for a model."""
    alone = header.architecture in ("eagle3", "medusa") or not any(name.startswith("blk.0.") for name in header.by_name)
    return head_of(header) if alone else ""


def require_model(header: Header) -> None:
    """Raise SpecdecError on a file that contains only heads, which can't be a target."""
    if head_alone(header):
        what = f"{header.name} contains only heads, which draft for the model in another file"
        raise SpecdecError(what, "Name that model as the target (-m), and this file as its draft (-md).")


def require_fit(heads: Header, target: Header, tokenizers: Comparison) -> None:
    """Raise IncompatiblePair unless heads have the target's tokenizer and width, SpecdecError if they are damaged."""
    fix = "Use heads made for this target."
    if tokenizers.overlap is not None:
        raise IncompatiblePair(f"{heads.name} needs the target's tokenizer: {tokenizers.reason}", fix)
    key = "target_hidden_size" if heads.architecture == "eagle3" else "embedding_length"
    width, own = heads.count(key), target.count("embedding_length")
    if not width:
        raise damaged(heads.name, f"{heads.architecture}.{key} is {shown(heads.setting(key))}")
    if width != own:
        raise IncompatiblePair(f"{heads.name} fits a hidden size of {width}, but {target.name} has {own}", fix)
    if heads.architecture == "medusa":
        _checked_heads(heads, len(Vocabulary(target)))


def read_medusa(header: Header, path: Path, n_vocab: int) -> tuple[list[list[Weight]], NDArray[np.int64] | None]:
    """Read the heads of a file: for each, the block's matrix and bias, and the output matrix; then the token ids of the
    logits, (n_words,), None for the whole vocabulary. n_vocab: the target's vocabulary size. Raises SpecdecError if it
    is damaged.
    """
    n_heads = _checked_heads(header, n_vocab)
    tensors = header.by_name
    data = np.memmap(path, np.uint8, "r")

    def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
        start = header.data_offset + tensor.offset
        return data[start : start + (tensor.size or 0)]

    def weight(name: str) -> Weight:
        tensor = tensors[name]
        return _NUMBERS[tensor.type], tensor.shape, bytes_of(tensor)

    words = bytes_of(tensors["d2t"]).copy().view(np.int64) if "d2t" in tensors else None
    if words is not None and (words.min() < 0 or words.max() >= n_vocab or len(np.unique(words)) < len(words)):
        raise damaged(header.name, f"d2t, its table of token ids, has duplicates, or ids outside 0 to {n_vocab - 1:,}")
    return [[weight(f"head.{k}.{part}") for part in PARTS] for k in range(n_heads)], words


def _checked_heads(header: Header, n_vocab: int) -> int:
    """The number of heads. Raises SpecdecError if a tensor doesn't fit."""
    heads, width = header.setting("heads"), header.setting("embedding_length")
    for what, value, most in (("heads", heads, _MAX_HEADS), ("numbers in a hidden row", width, _MAX_WIDTH)):
        if type(value) is not int or not 1 <= value <= most:
            raise damaged(header.name, f"it claims {shown(value)} {what}")
    if header.scalar("split.count") not in (None, 0, 1):
        raise SpecdecError(f"{header.name} is split into several files", "Use heads in a single file.")
    tensors = header.by_name
    table = tensors.get("d2t")
    if table and (table.type != "I64" or len(table.shape) != 1 or not 1 <= table.n_params <= n_vocab):
        raise damaged(header.name, f"d2t is {_described(table)}, not a table of token ids")
    n_words = table.n_params if table else n_vocab
    wanted = dict(zip(PARTS, ((width, width), (width,), (width, n_words)), strict=True))
    for k in range(heads):
        for part, shape in wanted.items():
            _require(header, tensors.get(f"head.{k}.{part}"), f"head.{k}.{part}", shape)
    return int(heads)


def _require(header: Header, tensor: Tensor | None, name: str, shape: tuple[int, ...]) -> None:
    if tensor is None:
        raise damaged(header.name, f"it lacks {name}")
    if tensor.shape != shape:
        raise damaged(header.name, f"{name} is {_described(tensor)}, not {' x '.join(map(str, shape))}")
    block = TYPES[_NUMBERS[tensor.type]][1] if tensor.type in _NUMBERS else 0
    usable = tensor.type == "F32" if len(shape) == 1 else block and tensor.type not in _NO_MATRIX
    if not usable or shape[0] % block:
        raise damaged(header.name, f"{name} is {_described(tensor)}, which ggml cannot compute with")


def _described(tensor: Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape)) or 'a number'} of {tensor.type}"
