"""Writes a model that computes what a small one computes, at the cost of a large one: real behaviour at real size.

    python benchmarks/inflate.py --like 8b --type Q8_0 profiles/demo/target.gguf target-8b.gguf
    python benchmarks/inflate.py --like 0.5b --type Q8_0 profiles/demo/draft.gguf draft-0.5b.gguf

Benchmarks need a draft whose tokens are really accepted and a target that is really slow. The source is a GGUF file of
the plain llama architecture; the result has more layers, a wider residual stream, more and larger heads, shared keys
and values, more feed-forward units and more tokens. Below, small letters are the source's sizes, capitals the result's:

- Stream: the source's d dimensions come first, the others are zero. The mean of squares over D is d/D of that over d,
  so the norms' weights are multiplied by sqrt(d/D), and epsilon by d/D.
- Heads: key/value head a stays a, with query heads from a * G on (G per key/value head). Pair i of a head rotates with
  frequency base^(-2i/h), so it becomes pair i * H/h; queries are multiplied by sqrt(H/h), because scores are divided by
  sqrt(H). Values fill a head's first h dimensions.
- Layers: the first are the source's, the others add zero.
- Tokens: the added ones never occur in a text (the tokenizer marks them unused) and are never sampled. The embedding's
  last dimension is a constant c, which stays in the stream; c^2 = eps * d/2 is subtracted from epsilon, so norms don't
  change. Only the output's norm lets it through, and each added token has -1 there in the output matrix: its logit is
  about -PENALTY divided by the root mean square of the source's stream, and its probability is 0 in float32.

All other weights are random, N(0, 1/inputs), as memory and arithmetic should see the values of a real model: a weight
that is multiplied by zero may have any value. These must be zero, 3 % of an 8B model's weights:

- with the source's stream as input: rows of attn_v and ffn_up that aren't the source's (their values and units are then
  zero, and are multiplied by random weights); in the source's layers, also such rows of attn_q;
- in the source's layers, with its values and units as input: rows of attn_output and ffn_down for added dimensions,
  and all rows of attn_output for other query heads that share these values.

Unlike in a real model, most activations are zero.

Random rows are made once for each kind of matrix (four million numbers) and written repeatedly, each time from another
row on. Caches work by address, so this makes no difference to them; new numbers would take minutes.

F16 and Q8_0 keep the function up to rounding: llama.cpp's kernels round activations (to 8 bits, for Q8_0), and a
difference in the last bit grows to the logits' first decimal. A near-tie may flip, a few times per thousand tokens.
After writing, the result is compared with the source. `specdec draft quantize` makes smaller types of it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import gguf
import numpy as np
from common import N_CTX, PROMPTS
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, LlamaFileType

from specdec_cli.llama import host
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that a llama model's cost depends on. head_size: of queries, keys and values."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocab: int

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads


LIKE = {
    # Llama 3.1 8B
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    # Qwen 2.5 0.5B with the vocabulary above. It has 14 heads and 2 key/value heads, but the bundled draft needs 4; 12
    # and 4 have as many weights.
    "0.5b": Shape(24, 896, 12, 4, 64, 4864, 128256),
}
FILE_TYPES = {"F16": LlamaFileType.MOSTLY_F16, "Q8_0": LlamaFileType.MOSTLY_Q8_0}
BLOCK = 256
"""The most columns with one scale, in any type or in a kernel's rounding of activations."""
PENALTY = 2_000.0
"""Puts added tokens at least 100 below the others, and stays far below the limit of 16 bits (65,504)."""
NEAR_TIE = 0.1
"""Rounding can swap logits that are this close."""
OUT_OF_REACH = 50.0
"""A token whose logit is this far below another's is never sampled: it is 2e-22 times as likely."""
NORMS = ("attn_norm", "ffn_norm")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NOWHERE = np.array([], np.intp)


def row_bytes(kind: Type, columns: int) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return columns // block * size


class Source:
    """A GGUF file of the plain llama architecture. Raises SystemExit for any other."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self._tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in reader.tensors}
        if self.field("general.architecture") != "llama":
            raise SystemExit(f"{path.name} is not of the llama architecture")
        heads, width = self.field("llama.attention.head_count"), self.field("llama.embedding_length")
        self.shape = Shape(
            layers=self.field("llama.block_count"),
            width=width,
            heads=heads,
            kv_heads=self.field("llama.attention.head_count_kv", heads),
            head_size=self.field("llama.attention.key_length", width // heads),
            feed_forward=self.field("llama.feed_forward_length"),
            vocab=len(self.field("tokenizer.ggml.tokens")),
        )
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")
        known = {f"blk.{i}.{part}" for i in range(self.shape.layers) for part in NORMS + MATRICES}
        if others := self._tensors.keys() - known - {"token_embd", "output_norm", "output"}:
            raise SystemExit(f"{path.name} has unknown tensors: {', '.join(sorted(others))}")

    def field(self, name: str, default: object = None) -> Any:
        return self.fields[name].contents() if name in self.fields else default

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> np.ndarray:
        """float32 (outputs, inputs), or (width,) for a norm."""
        found = self._tensors["token_embd" if name == "output" and name not in self else name]
        return gguf.quants.dequantize(found.data, found.tensor_type)


class Noise:
    """Random weights: as numbers, and as quantised rows that are made once and reused."""

    SIZE = 1 << 22

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._normal = self._rng.standard_normal(self.SIZE, np.float32)
        self._pools: dict[object, np.ndarray] = {}

    def rows(self, count: int, columns: int, zero: np.ndarray) -> np.ndarray:
        """float32 (count, columns), zero in the columns `zero`."""
        start = self._rng.integers(self.SIZE // 2)
        rows = np.resize(self._normal[start:], (count, columns)) / np.float32(math.sqrt(columns))
        rows[:, zero] = 0
        return rows

    def write(self, file: BinaryIO, count: int, matrix: Matrix) -> None:
        """Write `count` random rows of a matrix."""
        key = (matrix.type, matrix.columns, matrix.zero.tobytes(), matrix.last)
        if key not in self._pools:
            rows = self.rows(max(2, self.SIZE // matrix.columns), matrix.columns, matrix.zero)
            if matrix.last is not None:
                rows[:, -1] = matrix.last
            self._pools[key] = gguf.quantize(rows, matrix.type)
        pool = self._pools[key]
        while count:
            start = int(self._rng.integers(len(pool) // 2))
            piece = pool[start : start + count]
            file.write(piece.data)
            count -= len(piece)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight matrix of the result, which GGUFWriter treats as an array.

    values: returns the source's weights, float32 (len(rows_at), len(columns_at)), for these rows (ascending) and
    columns. zero: columns in which random weights are zero, in all rows. last: the last column of random rows.
    """

    name: str
    rows: int
    columns: int
    type: Type
    noise: Noise
    values: Callable[[], np.ndarray]
    rows_at: np.ndarray
    columns_at: np.ndarray
    zero: np.ndarray
    last: float | None = None

    @property
    def nbytes(self) -> int:
        return self.rows * row_bytes(self.type, self.columns)

    def tofile(self, file: BinaryIO) -> None:
        written = 0
        if self.rows_at.size:
            rows = self.noise.rows(len(self.rows_at), self.columns, self.zero)
            rows[:, self.columns_at] = self.values()
            breaks = np.flatnonzero(np.diff(self.rows_at) != 1) + 1
            runs = zip(np.split(self.rows_at, breaks), np.split(gguf.quantize(rows, self.type), breaks), strict=True)
            for places, run in runs:
                self.noise.write(file, int(places[0]) - written, self)
                file.write(run.data)
                written = int(places[-1]) + 1
        self.noise.write(file, self.rows - written, self)


class Inflation:
    """The tensors of a source in another shape, one after another. Raises SystemExit if the source doesn't fit."""

    def __init__(self, source: Source, shape: Shape, chosen: str) -> None:
        small = source.shape
        fits = all(getattr(shape, field.name) >= getattr(small, field.name) for field in fields(Shape))
        fits = fits and shape.group >= small.group and not shape.head_size % small.head_size
        if not fits or shape.heads % shape.kv_heads:
            raise SystemExit(f"{small} does not fit into {shape}")
        self.padded = shape.vocab > small.vocab
        if self.padded and shape.width < small.width + BLOCK:
            raise SystemExit(f"added tokens need a width of at least {small.width + BLOCK}")
        self.source, self.shape, self._type, self._noise = source, shape, Type[chosen], Noise()
        self._rescaled = math.sqrt(small.width / shape.width)
        self._constant = math.sqrt(source.epsilon * small.width / 2)
        self.epsilon = source.epsilon * small.width / shape.width * (0.5 if self.padded else 1)

    def norms(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names and weights, float32 (width,)."""
        for name in ("output_norm", *(f"blk.{i}.{part}" for i in range(self.shape.layers) for part in NORMS)):
            weights = np.ones(self.shape.width, np.float32)
            if name in self.source:
                weights[: self.source.shape.width] = self.source.tensor(name) * self._rescaled
            if self.padded:
                weights[-1] = PENALTY * self._rescaled / self._constant if name == "output_norm" else 0
            yield name, weights

    def matrices(self) -> Iterator[Matrix]:
        vocab, width = self.shape.vocab, self.shape.width
        tokens, stream = np.arange(self.source.shape.vocab), np.arange(self.source.shape.width)
        edge = np.array([width - 1]) if self.padded else NOWHERE
        used, spare = np.append(stream, edge), np.arange(len(stream), width)
        yield self._matrix("token_embd", vocab, width, self._embedding, tokens, used, spare)
        last = -1.0 if self.padded else None
        yield self._matrix("output", vocab, width, partial(self._weights, "output"), tokens, stream, edge, last)
        for layer in range(self.shape.layers):
            yield from self._layer(layer)

    def _matrix(self, name: str, rows: int, columns: int, *more: Any) -> Matrix:
        return Matrix(name, rows, columns, self._type, self._noise, *more)

    def _embedding(self) -> np.ndarray:
        found = self.source.tensor("token_embd")
        return np.pad(found, ((0, 0), (0, int(self.padded))), constant_values=self._constant)

    def _layer(self, layer: int) -> Iterator[Matrix]:
        small, large = self.source.shape, self.shape
        width, units = large.width, large.feed_forward
        wide, kv_wide = large.heads * large.head_size, large.kv_heads * large.head_size
        stream, used = np.arange(small.width), np.arange(small.feed_forward)
        kv_heads = np.arange(kv_wide).reshape(large.kv_heads, large.head_size)[: small.kv_heads]
        heads = np.arange(wide).reshape(large.kv_heads, large.group, large.head_size)[: small.kv_heads]
        ours = heads[:, : small.group]
        kept = slice(small.head_size)
        pairs = np.arange(0, large.head_size, 2 * (large.head_size // small.head_size))
        turned = np.stack((pairs, pairs + 1), 1).ravel()
        # Rows and columns, the rows and columns of the source's weights, and columns that must be zero elsewhere.
        plan = {
            "attn_q": (wide, width, ours[..., turned], stream, stream),
            "attn_k": (kv_wide, width, kv_heads[:, turned], stream, NOWHERE),
            "attn_v": (kv_wide, width, kv_heads[:, kept], stream, stream),
            "attn_output": (width, wide, stream, ours[..., kept], heads[..., kept]),
            "ffn_gate": (units, width, used, stream, NOWHERE),
            "ffn_up": (units, width, used, stream, stream),
            "ffn_down": (width, units, stream, used, used),
        }
        for part, (rows, columns, *places) in plan.items():
            name = f"blk.{layer}.{part}"
            rows_at, columns_at, zero = (place.ravel() for place in places)
            if name not in self.source:
                rows_at, zero = NOWHERE, zero if part in ("attn_v", "ffn_up") else NOWHERE
            yield self._matrix(name, rows, columns, partial(self._weights, name), rows_at, columns_at, zero)

    def _weights(self, name: str) -> np.ndarray:
        scale = math.sqrt(self.shape.head_size / self.source.shape.head_size) if name.endswith("attn_q") else 1
        return self.source.tensor(name) * np.float32(scale)


def write(source: Source, out: Path, shape: Shape, chosen: str) -> tuple[int, int]:
    """Write a source in another shape and type, a few rows at a time. Returns the number of weights and bytes."""
    inflation = Inflation(source, shape, chosen)
    writer = gguf.GGUFWriter(out, "llama")
    tokens, types = source.field("tokenizer.ggml.tokens"), source.field("tokenizer.ggml.token_type")
    added = [f"[PAD{i}]" for i in range(len(tokens), shape.vocab)]
    values = {name: field.contents() for name, field in source.fields.items() if not name.startswith("GGUF.")} | {
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
        "llama.attention.layer_norm_rms_epsilon": inflation.epsilon,
        "llama.rope.dimension_count": shape.head_size,
        "llama.vocab_size": shape.vocab,
        "tokenizer.ggml.tokens": tokens + added,
        "tokenizer.ggml.token_type": types + [int(gguf.TokenType.UNUSED)] * len(added),
    }
    del values["general.architecture"]  # the writer's own
    for name, value in values.items():
        kinds = source.fields[name].types if name in source.fields else [GGUFValueType.UINT32]
        writer.add_key_value(name, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)
    norms, matrices = dict(inflation.norms()), list(inflation.matrices())
    for name, norm in norms.items():
        writer.add_tensor_info(f"{name}.weight", norm.shape, norm.dtype, norm.nbytes)
    for matrix in matrices:
        size = (matrix.rows, matrix.columns)
        writer.add_tensor_info(f"{matrix.name}.weight", size, np.dtype(np.float32), matrix.nbytes, matrix.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in (*norms.values(), *matrices):
        writer.write_tensor_data(tensor)
    writer.close()
    return sum(matrix.rows * matrix.columns for matrix in matrices), out.stat().st_size


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the result's tokens and logits compare with the source's.

    missed: for each token that differs, by number, how far the result's token is below the source's in the source's
    logits. apart: the largest difference between logits. below: how far the added tokens' logits are below the best.
    """

    tokens: int
    missed: dict[int, float]
    apart: float
    below: float

    @property
    def same(self) -> bool:
        """Whether rounding alone can explain the differences."""
        return max(self.missed.values(), default=0.0) <= NEAR_TIE and self.below > OUT_OF_REACH

    def __str__(self) -> str:
        text = f"{self.tokens - len(self.missed)} of {self.tokens} tokens equal"
        if self.missed:
            text += f", the others at most {max(self.missed.values()):.2g} apart"
        text += f"; logits differ by at most {self.apart:.2g}"
        return text + (f"; added tokens at least {self.below:.0f} below the best" if self.below < math.inf else "")


def compare(source: Path, result: Path, tokens: int, threads: int, prompts: Sequence[str] = PROMPTS) -> Comparison:
    """Let the source answer each prompt greedily with up to `tokens` tokens, and the result read them one by one."""
    interrupt = Interrupt()
    models = [Model(path, Placement(), interrupt) for path in (source, result)]
    count, missed, apart, below = 0, {}, 0.0, math.inf
    for prompt in prompts:
        contexts = [LlamaContext.open(model, N_CTX, 1, threads, interrupt) for model in models]
        read = models[0].tokenize(prompt)
        for _ in range(tokens):
            wanted, found = (context.decode(read)[0] for context in contexts)
            token, other = int(wanted.argmax()), int(found.argmax())
            if other != token:
                missed[count] = float(wanted[token] - wanted[other]) if other < len(wanted) else math.inf
            apart = max(apart, float(abs(found[: len(wanted)] - wanted).max()))
            below = min(below, float(found.max() - found[len(wanted) :].max(initial=-math.inf)))
            count += 1
            if models[0].is_end(token):
                break
            read = [token]
        for context in contexts:
            context.close()
    for model in models:
        model.close()
    return Comparison(count, missed, apart, below)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("source", type=Path, metavar="SRC")
    options.add_argument("out", type=Path, metavar="OUT")
    options.add_argument("--like", choices=LIKE, help="the shape of a real model; by default the source's")
    options.add_argument("--type", choices=FILE_TYPES, default="Q8_0")
    for field in fields(Shape):
        options.add_argument(f"--{field.name.replace('_', '-')}", type=int, metavar="N")
    options.add_argument("--verify", type=int, default=64, metavar="N", help="tokens to compare per prompt; 0: none")
    options.add_argument("--threads", type=int, default=host.physical_cores(), help="to compare with")
    chosen = options.parse_args()
    if chosen.out.exists() and chosen.out.samefile(chosen.source):
        options.error("OUT and SRC are the same file")
    source = Source(chosen.source)
    shape = LIKE[chosen.like] if chosen.like else source.shape
    given = {field.name: getattr(chosen, field.name) for field in fields(Shape)}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    started = perf_counter()
    weights, size = write(source, chosen.out, shape, chosen.type)
    print(f"{shape}\n{weights / 1e9:.3f} billion weights, {size / 1e9:.2f} GB in {perf_counter() - started:.1f} s")
    if chosen.verify:
        found = compare(chosen.source, chosen.out, chosen.verify, chosen.threads)
        print(found)
        if not found.same:
            sys.exit(1)


if __name__ == "__main__":
    main()
