"""The hidden rows of a target for the tokens that it has read: what heads that draft for it go by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.llama import extensions

_MOST_BYTES = 256 << 20
"""Of rows that are kept; beyond, the older half goes. 16,384 tokens of a model with 4,096 numbers a row."""

FloatRows = NDArray[np.float32]


class HiddenRows:
    """Of each token one row, (width,), by its place in the text. layers: whose inputs make up a row, one after the
    other; None: what leaves the last layer. n_embd: numbers that each gives.
    """

    def __init__(self, context: Any, n_embd: int, layers: Sequence[int] | None = None) -> None:
        self._context, self._n_embd, self._layers = context, n_embd, layers
        self.width = n_embd * len(layers or (0,))
        self._rows: FloatRows = np.empty((256, self.width), np.float32)
        self.first = 0
        """The place of the first row that is kept."""
        self._count = 0
        self._nodes: list[FloatRows] = []
        """Rows of a tree's nodes, by number."""
        for layer in layers or ():
            extensions.give_layer(context, layer)
        if layers is None:
            extensions.give_hidden_rows(context, masked=False)

    def take(self, first: int, count: int) -> None:
        """Keep the rows of the last pass, which read `count` tokens from place `first` on."""
        self.cut(first)
        if self.first + self._count != first:  # what lies between was not read with rows
            self.first, self._count = first, 0
        self._append(self._read(count))

    def take_nodes(self, count: int) -> None:
        """Keep the rows of the last pass, which read so many nodes of a tree."""
        self._nodes += list(self._read(count).copy())

    def keep(self, path: Sequence[int]) -> None:
        """The nodes on this path are text from now on, and there are no others."""
        rows = [self._nodes[node] for node in path]
        self._nodes.clear()
        if rows:
            self._append(np.stack(rows))

    def cut(self, length: int) -> None:
        """The text ends after so many tokens."""
        self._nodes.clear()
        self._count = min(self._count, max(length - self.first, 0))

    def before(self, first: int, count: int) -> FloatRows:
        """(count, width): of each of `count` tokens from place `first` on, the row of the token before it; zeros where
        it is not known.
        """
        rows = np.zeros((count, self.width), np.float32)
        start, end = max(first - 1, self.first), min(first - 1 + count, self.first + self._count)
        if start < end:
            rows[start - first + 1 : end - first + 1] = self._rows[start - self.first : end - self.first]
        return rows

    def _append(self, rows: FloatRows) -> None:
        needed = self._count + len(rows)
        if needed > len(self._rows):
            if 2 * len(self._rows) * self.width * 4 > _MOST_BYTES and self._count:
                dropped = (self._count + 1) // 2
                self._rows[: self._count - dropped] = self._rows[dropped : self._count]
                self.first, self._count = self.first + dropped, self._count - dropped
                return self._append(rows)
            longer: FloatRows = np.empty((max(2 * len(self._rows), needed), self.width), np.float32)
            longer[: self._count] = self._rows[: self._count]
            self._rows = longer
        self._rows[self._count : needed] = rows
        self._count = needed
        return None

    def _read(self, count: int) -> FloatRows:
        if self._layers is None:
            return extensions.hidden_rows(self._context, count, self._n_embd)
        parts = [extensions.layer_rows(self._context, layer, count, self._n_embd) for layer in self._layers]
        return np.concatenate(parts, axis=1)
