"""The one llama_batch of a context, filled through numpy views of its arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np

from specdec_cli.llama.bindings import lib
from specdec_cli.llama.branches import Layout


class Batch:
    """Room for `size` tokens, each in up to `branches` sequences; in sequence 0 alone but for `fill_tree`. width: of
    the hidden row that comes with each token, for a head; 0: there is none.
    """

    def __init__(self, size: int, n_ctx: int, branches: int, width: int = 0) -> None:
        self.struct = lib.llama_batch_init(size, 0, branches)
        view = np.ctypeslib.as_array
        self._token, self._position = view(self.struct.token, (size,)), view(self.struct.pos, (size,))
        self._output, self._n_seq = view(self.struct.logits, (size,)), view(self.struct.n_seq_id, (size,))
        self._output[:] = 0
        self._positions = np.arange(n_ctx, dtype=np.int32)
        self.struct.n_tokens = size
        self.clear_tree()
        self.rows = np.zeros((size, width), np.float32)
        """To be filled before a pass."""
        if width:
            self.struct.embd = self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def fill(self, tokens: Sequence[int], first: int, all_rows: bool, unread: int = 0) -> None:
        """Text from position `first` on; of it the last row is computed, or all but the first `unread`."""
        self.struct.n_tokens = count = len(tokens)
        if count == 1:  # a draft model does little else: no slices
            self._token[0], self._position[0], self._output[0] = tokens[0], first, 1
        else:
            self._token[:count] = tokens
            self._position[:count] = self._positions[first : first + count]
            self._output[:count] = all_rows
            self._output[:unread] = 0
            self._output[count - 1] = 1

    def ask_for_none(self) -> None:
        """No row is computed of what was filled in."""
        self._output[: self.struct.n_tokens] = 0

    def fill_texts(self, pieces: Iterable[tuple[int, Sequence[int], int, bool, int, object]]) -> None:
        """Pieces of several texts, each with its sequence and then as `fill` takes one."""
        end = 0
        for sequence, tokens, first, all_rows, unread, _ in pieces:
            start, end = end, end + len(tokens)
            self._token[start:end] = tokens
            self._position[start:end] = self._positions[first : first + len(tokens)]
            self._output[start:end] = all_rows
            self._output[start : start + unread] = 0
            self._output[end - 1] = 1
            for i in range(start, end):
                self.struct.seq_id[i][0] = sequence
        self.struct.n_tokens = end

    def fill_tree(self, tokens: Sequence[int], layout: Layout, first: int, unread: int) -> None:
        """Nodes of a tree after a text of `first` tokens; of the first `unread` no row is computed."""
        self.struct.n_tokens = count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = layout.depths
        self._position[:count] += first
        self._output[:count] = 1
        self._output[:unread] = 0
        for i, sequences in enumerate(layout.sequences):
            self._n_seq[i] = len(sequences)
            for j, sequence in enumerate(sequences):
                self.struct.seq_id[i][j] = sequence

    def clear_tree(self) -> None:
        """Put what `fill_tree` filled back into sequence 0."""
        count = self.struct.n_tokens
        self._n_seq[:count] = 1
        for i in range(count):
            self.struct.seq_id[i][0] = 0

    def free(self) -> None:
        self.struct.embd = None  # which is not llama.cpp's own
        lib.llama_batch_free(self.struct)
