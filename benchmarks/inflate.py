"""A model that computes what a small one computes, at the cost of a large one: real behaviour at real size.

    python benchmarks/inflate.py --like 8b --type Q8_0 profiles/demo/target.gguf target-8b.gguf
    python benchmarks/inflate.py --like 0.5b --type Q8_0 profiles/demo/draft.gguf draft-0.5b.gguf

Benchmarks need a draft whose tokens are really accepted and a target that really takes its time. The source is a GGUF
file of the plain llama architecture; the result has more layers, a wider residual stream, more and larger heads,
shared keys and values, more feed-forward units and more tokens. Small letters mean the source's, large the result's:

- Residual stream: the d dimensions come first, the others are zero. A sum of squares over D of them is the same, its
  mean d/D of it: norms get weights times sqrt(d/D), and epsilon d/D.
- Heads: key/value head a is a, with query heads a * G and on (G to a key/value head). Pair i of a head turns with
  frequency base^(-2i/h), so it goes to pair i * H/h; queries are multiplied by sqrt(H/h), since scores are divided by
  sqrt(H). Values go to a head's first dimensions.
- Layers: the first ones are the source's, the others add zero.
- Tokens: unreachable ones ("unused" to the tokenizer) whose logits are below any other. The embedding's last dimension
  is a constant c, which stays in the stream; c^2 = eps * d/2 of epsilon is taken off again, so norms are the same.
  Only the output's norm lets it through, large, and each added token has -1 there: its logit is -PENALTY divided by
  the root mean square of the stream, its chance exactly 0 in float32. Needs `--vocab` and D >= d + 256.

What is not used is random, not zero, so that memory, multipliers and their power see what they see in a real model:
what meets a zero activation may have any value. Zero are only, in columns that meet the d used dimensions, the rows of
unused values and feed-forward units (then these are zero, and what comes after them meets zeros), and the query rows of
a used head's further dimensions; and, in the source's layers, the columns of attn_output and ffn_down that meet used
values and units, in rows of unused dimensions and, for values, in query heads that share a used head's. Together
well under a tenth. Activations are mostly zero, though; a real model's are not.

Random rows are made once for each kind of tensor (four million numbers) and written again and again, each time from
another row on: 16 GB of new random numbers would take minutes, and no cache is that large.

F16 and Q8_0 keep the function, but for the rounding of sums and of what is rescaled; Q4_K_M rounds the source's
weights too. `compare` measures it: the source writes greedily, the result reads the same tokens one by one.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
from common import N_CTX, PROMPTS
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType

from specdec_cli.llama import library
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model


@dataclass(frozen=True, slots=True)
class Shape:
    """What a llama model's cost depends on. head_size: of queries, keys and values alike."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocab: int

    @property
    def group(self) -> int:
        """Query heads to a key/value head."""
        return self.heads // self.kv_heads


LIKE = {
    # Llama 3.1 8B
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    # Qwen 2.5 0.5B with the vocabulary above. It has 14 heads and 2 for keys and values, too few for the draft's 4;
    # 12 and 4 are as many weights.
    "0.5b": Shape(24, 896, 12, 4, 64, 4864, 128256),
}
FILE_TYPES = {"F16": LlamaFileType.MOSTLY_F16, "Q8_0": LlamaFileType.MOSTLY_Q8_0, "Q4_K_M": LlamaFileType.MOSTLY_Q4_K_M}
LOSSLESS = ("F16", "Q8_0")
PENALTY = 10_000.0
EDGE = 256
"""Columns at the end that belong to the constant: the largest block of any type."""

_quantise = lib._lib.ggml_quantize_chunk
_quantise.restype = ctypes.c_size_t
_quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]


def row_bytes(kind: Type, columns: int) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return columns // block * size


def quantise(rows: np.ndarray, kind: Type) -> np.ndarray:
    """float32 (rows, columns) as llama.cpp quantises it: uint8 (rows, bytes of a row)."""
    count, columns = rows.shape
    rows = np.ascontiguousarray(rows, np.float32)
    out = np.empty((count, row_bytes(kind, columns)), np.uint8)
    _quantise(kind, rows.ctypes.data, out.ctypes.data, 0, count, columns, None)
    return out


def tensor_type(name: str, columns: int, layer: int, layers: int, chosen: str) -> Type:
    """What llama.cpp gives a matrix in a file of the chosen type; see its llama-quant.cpp for Q4_K_M."""
    if chosen != "Q4_K_M":
        return Type[chosen]
    eighth = layers // 8
    more_bits = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    large = name == "output" or (name in ("attn_v", "ffn_down") and more_bits)
    if columns % EDGE:
        return Type.Q8_0 if large else Type.Q5_0
    return Type.Q6_K if large else Type.Q4_K


class Noise:
    """Random weights, N(0, 1/columns): as numbers, and as quantised rows that are made once and used again."""

    SIZE = 1 << 22

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._normal = self._rng.standard_normal(self.SIZE, np.float32)
        self._pools: dict[object, np.ndarray] = {}

    def rows(self, count: int, columns: int) -> np.ndarray:
        """float32 (count, columns)"""
        start = self._rng.integers(self.SIZE // 2)
        return np.resize(self._normal[start:], (count, columns)) / np.float32(math.sqrt(columns))

    def write(self, file: BinaryIO, count: int, matrix: Matrix) -> None:
        """Rows that the source has nothing to say about."""
        key = (matrix.type, matrix.columns, matrix.zero.tobytes(), matrix.last)
        if key not in self._pools:
            rows = self.rows(max(2, self.SIZE // matrix.columns), matrix.columns)
            rows[:, matrix.zero] = 0
            if matrix.last is not None:
                rows[:, -1] = matrix.last
            self._pools[key] = quantise(rows, matrix.type)
        pool = self._pools[key]
        while count:
            start = int(self._rng.integers(len(pool) // 2))
            piece = pool[start : start + count]
            file.write(piece.data)
            count -= len(piece)


NOWHERE = np.array([], np.intp)
Rows = Iterable[tuple[int, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight matrix of the result: rows (outputs) with the source's numbers in them, and random ones between these.

    real: makes pairs of a row's number and the float32 rows from there on. zero: columns where the random rows are
    zero. last: the random rows' last number, if it matters. Has what GGUFWriter asks of an array.
    """

    name: str
    rows: int
    columns: int
    type: Type
    noise: Noise
    zero: np.ndarray
    real: Callable[[], Rows] = tuple
    last: float | None = None

    @property
    def nbytes(self) -> int:
        return self.rows * row_bytes(self.type, self.columns)

    def tofile(self, file: BinaryIO) -> None:
        at = 0
        for first, rows in self.real():
            self.noise.write(file, first - at, self)
            file.write(quantise(rows, self.type).data)
            at = first + len(rows)
        self.noise.write(file, self.rows - at, self)


class Source:
    """A GGUF file of the plain llama architecture. Raises SystemExit for any other."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self._tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in reader.tensors}
        if self.field("general.architecture") != "llama":
            raise SystemExit(f"{path.name}: only the llama architecture can be inflated")
        heads, width = self.field("llama.attention.head_count"), self.field("llama.embedding_length")
        self.shape = Shape(
            self.field("llama.block_count"),
            width,
            heads,
            self.field("llama.attention.head_count_kv", heads),
            self.field("llama.rope.dimension_count", width // heads),
            self.field("llama.feed_forward_length"),
            len(self.field("tokenizer.ggml.tokens")),
        )
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")
        others = self._tensors.keys() - {"token_embd", "output_norm", "output"}
        others -= {f"blk.{i}.{part}" for i in range(self.shape.layers) for part in (*NORMS, *MATRICES)}
        if others:
            raise SystemExit(f"{path.name}: nothing is known of {', '.join(sorted(others))}")

    def field(self, name: str, default: object = None) -> Any:
        return self.fields[name].contents() if name in self.fields else default

    def tensor(self, name: str) -> np.ndarray:
        """float32 (outputs, inputs), or (width,) of a norm"""
        if name == "output" and name not in self._tensors:
            name = "token_embd"
        found = self._tensors[name]
        return gguf.quants.dequantize(found.data, found.tensor_type)


NORMS = ("attn_norm", "ffn_norm")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Inflation:
    """The tensors of a source in another shape, one after another. Raises SystemExit for a shape that does not fit."""

    def __init__(self, source: Source, shape: Shape, chosen: str) -> None:
        small = source.shape
        fits = all(getattr(shape, field.name) >= getattr(small, field.name) for field in fields(Shape))
        fits &= shape.group >= small.group and shape.head_size % small.head_size == 0
        fits &= shape.heads % shape.kv_heads == 0
        if not fits:
            raise SystemExit(f"{small} does not fit into {shape}")
        self.padded = shape.vocab > small.vocab
        if self.padded and shape.width < small.width + EDGE:
            raise SystemExit(f"more tokens need a width of at least {small.width + EDGE}")
        self.source, self.shape, self.chosen, self.noise = source, shape, chosen, Noise()
        share = small.width / shape.width
        self.epsilon = source.epsilon * share * (0.5 if self.padded else 1)
        self.constant = math.sqrt(source.epsilon * small.width / 2)
        self.rescaled = math.sqrt(share)

    def norms(self) -> Iterator[tuple[str, np.ndarray]]:
        """float32 (width,) of each norm, by name."""
        loud = PENALTY * self.rescaled / self.constant
        yield "output_norm", self._norm("output_norm", loud)
        for layer in range(self.shape.layers):
            for part in NORMS:
                yield f"blk.{layer}.{part}", self._norm(f"blk.{layer}.{part}", 0.0)

    def _norm(self, name: str, constant: float) -> np.ndarray:
        """constant: what becomes of the dimension that is constant."""
        weights = np.ones(self.shape.width, np.float32)
        if not name.startswith("blk.") or int(name.split(".")[1]) < self.source.shape.layers:
            weights[: self.source.shape.width] = self.source.tensor(name) * self.rescaled
        if self.padded:
            weights[-1] = constant
        return weights

    def matrices(self) -> Iterator[Matrix]:
        yield self._matrix("token_embd", self.shape.vocab, self.shape.width, real=self._embedding)
        last = -1.0 if self.padded else None
        yield self._matrix("output", self.shape.vocab, self.shape.width, real=self._output, last=last)
        for layer in range(self.shape.layers):
            yield from self._layer(layer)

    def _matrix(
        self, name: str, rows: int, columns: int, layer: int = -1, zero: np.ndarray = NOWHERE, **more: Any
    ) -> Matrix:
        kind = tensor_type(name, columns, layer, self.shape.layers, self.chosen)
        return Matrix(f"blk.{layer}.{name}" if layer >= 0 else name, rows, columns, kind, self.noise, zero, **more)

    def _embedding(self) -> Rows:
        rows = np.zeros((self.source.shape.vocab, self.shape.width), np.float32)
        rows[:, : self.source.shape.width] = self.source.tensor("token_embd")
        if self.padded:
            rows[:, -1] = self.constant
        yield 0, rows

    def _output(self) -> Rows:
        rows = self.noise.rows(self.source.shape.vocab, self.shape.width)
        if self.padded:
            rows[:, -EDGE:] = 0
        rows[:, : self.source.shape.width] = self.source.tensor("output")
        yield 0, rows

    def _layer(self, layer: int) -> Iterator[Matrix]:
        """The matrices of a layer; beyond the source's, values and feed-forward units are zero, and so what it adds."""
        small, large = self.source.shape, self.shape
        wide, kv_wide = large.heads * large.head_size, large.kv_heads * large.head_size
        stream, units = np.arange(small.width), np.arange(small.feed_forward)
        # Columns of attn_output that meet the source's values: by key/value head, query head of it, dimension.
        heads = np.arange(wide).reshape(large.kv_heads, large.group, large.head_size)
        heads = heads[: small.kv_heads, :, : small.head_size]
        values = heads[:, : small.group].ravel()
        pairs = np.arange(small.head_size // 2) * 2 * (large.head_size // small.head_size)
        turned = np.stack((pairs, pairs + 1), 1).ravel()  # where a head's dimensions go if they are rotated
        kept = np.arange(small.head_size)

        def weights(part: str) -> np.ndarray:
            return self.source.tensor(f"blk.{layer}.{part}")

        def queries() -> Rows:
            scale = np.float32(math.sqrt(large.head_size / small.head_size))
            found = weights("attn_q").reshape(small.kv_heads, small.group, small.head_size, small.width) * scale
            for i, j in np.ndindex(found.shape[:2]):
                rows = self.noise.rows(large.head_size, large.width)
                rows[:, stream] = 0
                rows[turned, : small.width] = found[i, j]
                yield (i * large.group + j) * large.head_size, rows

        def of_heads(part: str, places: np.ndarray) -> Rows:
            for i, found in enumerate(weights(part).reshape(small.kv_heads, small.head_size, small.width)):
                rows = self.noise.rows(places[-1] + 1, large.width)
                rows[places, : small.width] = found
                yield i * large.head_size, rows

        def at_once(part: str, columns: int, zero: np.ndarray, used: np.ndarray) -> Rows:
            found = weights(part)
            rows = self.noise.rows(len(found), columns)
            rows[:, zero] = 0
            rows[:, used] = found
            yield 0, rows

        def matrix(name: str, rows: int, columns: int, real: Callable[[], Rows], zero: np.ndarray) -> Matrix:
            return self._matrix(name, rows, columns, layer, real=real if ours else tuple, zero=zero)

        ours = layer < small.layers
        width, more = large.width, large.feed_forward
        unheard, idle = (heads.ravel(), units) if ours else (NOWHERE, NOWHERE)
        yield matrix("attn_q", wide, width, queries, NOWHERE)
        yield matrix("attn_k", kv_wide, width, lambda: of_heads("attn_k", turned), NOWHERE)
        yield matrix("attn_v", kv_wide, width, lambda: of_heads("attn_v", kept), stream)
        yield matrix("attn_output", width, wide, lambda: at_once("attn_output", wide, unheard, values), unheard)
        yield matrix("ffn_gate", more, width, lambda: at_once("ffn_gate", width, NOWHERE, stream), NOWHERE)
        yield matrix("ffn_up", more, width, lambda: at_once("ffn_up", width, NOWHERE, stream), stream)
        yield matrix("ffn_down", width, more, lambda: at_once("ffn_down", more, NOWHERE, units), idle)


def write(path: Path, out: Path, shape: Shape, chosen: str) -> tuple[int, int]:
    """Write the model in `path` in another shape and type. Returns its weights and its bytes.

    Never more than a few rows of a matrix are in memory, beside some random ones.
    """
    source = Source(path)
    inflation = Inflation(source, shape, chosen)
    writer = gguf.GGUFWriter(out, "llama")
    made = {
        "general.name": out.stem,
        "general.file_type": int(FILE_TYPES[chosen]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_size,
        "llama.attention.value_length": shape.head_size,
        "llama.rope.dimension_count": shape.head_size,
        "llama.vocab_size": shape.vocab,
    }
    tokens, types = source.field("tokenizer.ggml.tokens"), source.field("tokenizer.ggml.token_type")
    added = [f"[PAD{i}]" for i in range(len(tokens), shape.vocab)]
    changed = {
        "llama.attention.layer_norm_rms_epsilon": inflation.epsilon,
        "tokenizer.ggml.tokens": tokens + added,
        "tokenizer.ggml.token_type": types + [int(gguf.TokenType.UNUSED)] * len(added),
    }
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in made:
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, changed.get(name, field.contents()), field.types[0], element)
    for name, value in made.items():
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, value)
    norms, n_weights, n_bytes = dict(inflation.norms()), 0, 0
    for name, norm in norms.items():
        writer.add_tensor_info(f"{name}.weight", norm.shape, norm.dtype, norm.nbytes)
    for matrix in inflation.matrices():
        size = (matrix.rows, matrix.columns)
        writer.add_tensor_info(f"{matrix.name}.weight", size, np.dtype(np.float32), matrix.nbytes, matrix.type)
        n_weights, n_bytes = n_weights + math.prod(size), n_bytes + matrix.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in (*norms.values(), *inflation.matrices()):
        writer.write_tensor_data(tensor)
    writer.close()
    return n_weights, n_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result's choice at each token that the source wrote, and how far their logits are apart at most.

    below: by how much the added tokens' best logit was below the best of all, at least.
    """

    equal: tuple[bool, ...]
    apart: float
    below: float

    def __str__(self) -> str:
        said = f"{sum(self.equal)} of {len(self.equal)} tokens equal"
        if not all(self.equal):
            said += f", the first difference at {self.equal.index(False)}"
        said += f"; logits at most {self.apart:.2g} apart"
        return said + (f", those of added tokens at least {self.below:,.0f} below" if self.below < math.inf else "")


def compare(source: Path, result: Path, tokens: int, threads: int, prompts: Sequence[str] = PROMPTS) -> Comparison:
    """Let the source write `tokens` tokens to each prompt, greedily, and the result read them, one by one.

    All equal means that the result would have written the same.
    """
    interrupt = Interrupt()
    models = [Model(path, -1, interrupt) for path in (source, result)]
    equal, apart, below = [], 0.0, math.inf
    for prompt in prompts:
        contexts = [LlamaContext(model, N_CTX, 1, threads, interrupt) for model in models]
        read = models[0].tokenize(prompt)
        for _ in range(tokens):
            theirs, ours = (context.decode(read)[0] for context in contexts)
            read = [int(theirs.argmax())]
            equal.append(read[0] == int(ours.argmax()))
            apart = max(apart, float(abs(ours[: len(theirs)] - theirs).max()))
            if len(ours) > len(theirs):
                below = min(below, float(ours.max() - ours[len(theirs) :].max()))
            if models[0].is_end(read[0]):
                break
        for context in contexts:
            context.close()
    for model in models:
        model.close()
    return Comparison(tuple(equal), apart, below)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("source", type=Path, metavar="SRC")
    options.add_argument("out", type=Path, metavar="OUT")
    options.add_argument("--like", choices=LIKE, help="a real model's shape; else the source's")
    options.add_argument("--type", choices=FILE_TYPES, default="Q8_0")
    for field in fields(Shape):
        options.add_argument(f"--{field.name.replace('_', '-')}", type=int, metavar="N")
    options.add_argument("--verify", type=int, default=64, metavar="N", help="tokens to compare per prompt; 0 for none")
    options.add_argument("--threads", type=int, default=library.physical_cores())
    chosen = options.parse_args()
    shape = LIKE[chosen.like] if chosen.like else Source(chosen.source).shape
    given = {field.name: getattr(chosen, field.name) for field in fields(Shape)}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    started = perf_counter()
    n_weights, n_bytes = write(chosen.source, chosen.out, shape, chosen.type)
    print(f"{shape}\n{n_weights / 1e9:.3f} billion weights, {n_bytes / 1e9:.2f} GB in {perf_counter() - started:.1f} s")
    if chosen.verify:
        found = compare(chosen.source, chosen.out, chosen.verify, chosen.threads)
        print(found)
        if chosen.type in LOSSLESS and not all(found.equal):
            sys.exit(1)


if __name__ == "__main__":
    main()
