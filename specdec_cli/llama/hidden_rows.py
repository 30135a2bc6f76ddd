"""The hidden rows of a target for the tokens that it has read; heads draft from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.undeclared import call

LAST, OUTPUT = -1, -2
"""Special layers: the output of the last one; and, only on its own, the input of the output matrix, which is that
output after its norm.
"""
_MAX_BYTES = 256 << 20
"""The most bytes of rows; beyond, the older half is dropped. 16,384 tokens of a model with rows of 4,096 values."""

_OTHER = "Use another drafter: --drafter ngram needs no draft model."

FloatRows = NDArray[np.float32]


class HiddenRows:
    """One row (width,) for each token, by position. layers: their inputs, concatenated, make up a row. n_embd: values
    per layer. most: rows of logits that a pass may give, for OUTPUT.
    """

    def __init__(self, context: Any, n_embd: int, layers: Sequence[int], most: int = 0) -> None:
        self._context, self._n_embd, self._layers = context, n_embd, layers
        self.width = n_embd * len(layers)
        self._rows: FloatRows = np.empty((256, self.width), np.float32)
        self.first = 0
        """The position of the first row that is kept."""
        self._count = 0
        self._nodes: list[FloatRows] = []
        """The rows of a tree's nodes, by number."""
        self._with_logits, self._most, self._given = layers == [OUTPUT], most, True
        for layer in [] if self._with_logits else layers:
            if layer == LAST:
                call("llama_set_embeddings_nextn", context, True, False)  # of all tokens
            else:
                call("llama_set_embeddings_layer_inp", context, layer, True)

    def ask(self, count: int, unread: int, all_rows: bool) -> int:
        """Prepare for a pass over `count` tokens that computes the last row of logits, or with all_rows all but the
        first `unread`. Returns how many of the unread rows it must compute too: OUTPUT rows come only with logits.
        """
        if self._with_logits:
            self._given = (all_rows or count == 1) and count <= self._most
            lib.llama_set_embeddings(self._context, self._given)
        return unread if self._with_logits and self._given else 0

    def take(self, first: int, count: int, start: int = 0) -> None:
        """Keep the rows of the last pass, which read `count` tokens from position `first` on, after `start` others."""
        self.cut(first)
        if self._given:
            self._append(first, self._read(start + count)[start:])

    def take_nodes(self, count: int) -> None:
        """Keep the rows of the last pass, which read `count` nodes of a tree."""
        if self._given:
            self._nodes += list(self._read(count).copy())

    def keep(self, first: int, path: Sequence[int]) -> None:
        """End the tree: the nodes on this path become the text from position `first` on."""
        rows = [self._nodes[node] for node in path] if self._nodes else []
        self.cut(first)
        if rows:
            self._append(first, np.stack(rows))

    def knows(self, place: int) -> bool:
        """Whether the row before the token at this position is known."""
        return self.first < place <= self.first + self._count

    def cut(self, length: int) -> None:
        """Drop the rows after the first `length` tokens, and those of a tree."""
        self._nodes.clear()
        self._count = min(self._count, max(length - self.first, 0))

    def copy(self, other: HiddenRows, length: int) -> None:
        """Take the rows of another text, of which the first `length` tokens are this one's."""
        self.first, self._count = other.first, 0
        if (count := min(length - other.first, other._count)) > 0:
            self._append(other.first, other._rows[:count])

    def before(self, first: int, count: int) -> FloatRows:
        """(count, width): for each token from position `first` on, the row of the token before; zeros if unknown."""
        rows = np.zeros((count, self.width), np.float32)
        start, end = max(first - 1, self.first), min(first - 1 + count, self.first + self._count)
        if start < end:
            rows[start - first + 1 : end - first + 1] = self._rows[start - self.first : end - self.first]
        return rows

    def require_given(self, read: Callable[[], Logits]) -> None:
        """Raise SpecdecError if a pass gives no rows, or no logits with them (LFM2). read: runs a one-token pass."""
        for part in (read(), self._read(1)):
            part[:] = np.nan
        if np.isnan(read()).any() or np.isnan(self._read(1)).any():
            raise SpecdecError("llama.cpp does not give the target's hidden rows together with its logits", _OTHER)

    def _append(self, first: int, rows: FloatRows) -> None:
        if self.first + self._count != first:  # the tokens between were read without rows
            self.first, self._count = first, 0
        needed = self._count + len(rows)
        if needed > len(self._rows):
            if 2 * len(self._rows) * self.width * 4 > _MAX_BYTES and self._count:
                dropped = (self._count + 1) // 2
                self._rows[: self._count - dropped] = self._rows[dropped : self._count]
                self.first, self._count = self.first + dropped, self._count - dropped
                return self._append(first, rows)
            longer: FloatRows = np.empty((max(2 * len(self._rows), needed), self.width), np.float32)
            longer[: self._count] = self._rows[: self._count]
            self._rows = longer
        self._rows[self._count : needed] = rows
        self._count = needed
        return None

    def _read(self, count: int) -> FloatRows:
        if self._with_logits:
            if not (rows := lib.llama_get_embeddings(self._context)):
                raise SpecdecError("llama.cpp gives no hidden rows for the target", _OTHER)
            return np.ctypeslib.as_array(rows, (count, self._n_embd))
        parts = [self._read_layer(layer, count) for layer in self._layers]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _read_layer(self, layer: int, count: int) -> FloatRows:
        if layer == LAST:
            return last_rows(self._context, count, self._n_embd)
        return rows_at(call("llama_get_embeddings_layer_inp", self._context, layer), count, self._n_embd)


def last_rows(context: Any, count: int, width: int) -> FloatRows:
    """(count, width): the last layer's rows in the last pass; valid until the next."""
    address = call("llama_get_embeddings_nextn", context)
    if not address:
        raise SpecdecError("llama.cpp gives no hidden rows for this model", "Use another drafter.")
    return rows_at(address, count, width)


def rows_at(address: int, count: int, width: int) -> FloatRows:
    """A view of rows in memory. numpy.ctypeslib.as_array takes ten times as long, and drafting reads rows often."""
    buffer: Any = (ctypes.c_float * (count * width)).from_address(address)
    return np.frombuffer(buffer, np.float32).reshape(count, width)
