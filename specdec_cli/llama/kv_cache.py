"""The cells of a text in llama.cpp's KV cache, and how to rewind it: positions, checkpoints, branches of a tree."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.branches import Branches, Layout
from specdec_cli.llama.passes import Passes

_MOVING_S = 60.0
"""How long moving a text's cells over the network may take."""

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: only the state that can't be rewound
_ALONE = "Run the target alone: --drafter none."


class KVCache:
    """The cells of a text and of a tree at its end. sequence: the text's. With a tree it must be 0, and the tree uses
    all other sequences of these passes.

    A cache of keys and values can drop its last cells at any time: it `rewinds`. A recurrent state can't. It goes back
    to the snapshots that llama.cpp took during the last pass, or to a checkpoint.
    """

    def __init__(self, passes: Passes, sequence: int) -> None:
        self._handle, self._call, self._sequence = passes.handle, passes.call, sequence
        self._all = -1 if passes.branches > 1 else sequence
        """The sequences of the text and its tree, as llama.cpp numbers them; -1: all."""
        self._memory = lib.llama_get_memory(passes.handle)
        self.rewinds = passes.rewinds
        self.can_move = bool(lib.llama_memory_can_shift(self._memory))
        """Whether cells can move to other positions."""
        self.last_pass = 0
        """Tokens of the last pass; 0 if its snapshots are no longer valid."""
        self._snapshots: int = lib.llama_n_rs_seq(passes.handle)  # 0: llama.cpp has none for this architecture
        self._saved: tuple[int, ctypes.Array[ctypes.c_uint8]] | None = None
        self._window: int = lib.llama_model_n_swa(passes.model.handle) if passes.texts > 1 else 0
        """Tokens that layers with a sliding window attend to, if other texts may overwrite earlier ones; else 0."""
        self.branches = Branches(passes.branches)
        """The nodes of the tree at the end of the text."""
        self._shared = [0] * passes.branches
        """How many tokens of the text belong to each sequence; unused for sequence 0, which has all of them."""

    @property
    def length(self) -> int:
        """Tokens of the text, as llama.cpp counts them."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._sequence)) + 1

    # Positions

    def can_drop(self, count: int) -> bool:
        """Whether the last `count` tokens can be dropped. llama.cpp doesn't check whether the last pass left a
        snapshot: it would use a stale one.
        """
        return self.rewinds or count <= max(min(self._snapshots, self.last_pass - 1), 0)

    def reachable(self, length: int, kept: int) -> int:
        """The most tokens, up to `kept`, to which a text of `length` tokens can go back: `kept`, a checkpoint, or 0.

        Where texts share a cache, llama.cpp lets them overwrite cells outside another's sliding window, and drops those
        before them. A recurrent cache doesn't say which are left.
        """
        if self._window and kept < length:
            first = lib.llama_memory_seq_pos_min(self._memory, self._sequence)
            return kept if self.rewinds and first <= max(kept - self._window, 0) else 0
        if self.can_drop(length - kept):
            return kept
        return self._saved[0] if self._saved and self._saved[0] <= kept else 0

    def drop(self, length: int) -> None:
        """Drop all cells of the text and its tree from position `length` on. Raises SpecdecError if llama.cpp
        refuses.
        """
        self.last_pass = 0
        self._shared = [min(shared, length) for shared in self._shared]
        if not lib.llama_memory_seq_rm(self._memory, self._all, length, -1):
            raise SpecdecError("llama.cpp refused to drop rejected tokens from its cache", "Run with --drafter none.")

    def clear(self) -> None:
        lib.llama_memory_seq_rm(self._memory, self._all, -1, -1)
        self._shared = [0] * len(self._shared)
        self._saved, self.last_pass = None, 0

    def forget(self, first: int, count: int) -> None:
        """Drop `count` cells of the text from position `first` on, and move later ones up. There must be no tree: other
        sequences lose what they share of the text.
        """
        for other in range(1, len(self._shared)):
            lib.llama_memory_seq_rm(self._memory, other, -1, -1)
        self._shared = [0] * len(self._shared)
        lib.llama_memory_seq_rm(self._memory, self._sequence, first, first + count)
        lib.llama_memory_seq_add(self._memory, self._sequence, first + count, -1, -count)

    def copy(self, other: KVCache, length: int) -> None:
        """Start with the first `length` tokens of another text of the same passes. This cache must be empty."""
        lib.llama_memory_seq_cp(self._memory, other._sequence, self._sequence, 0, length)

    # Checkpoints

    def checkpoint(self, length: int) -> None:
        """Allow what follows position `length` to be dropped. Costs nothing if the cache `rewinds`. With snapshots,
        which contexts with several rows have, only a part of the very next pass can be dropped, once.
        """
        if self.rewinds or self._snapshots:
            return
        size = lib.llama_state_seq_get_size_ext(self._handle, self._sequence, _PARTIAL)
        state = self._saved[1] if self._saved and len(self._saved[1]) == size else (ctypes.c_uint8 * size)()
        arguments = self._handle, state, size, self._sequence, _PARTIAL
        if self._call(lib.llama_state_seq_get_data_ext, *arguments) != size:
            raise SpecdecError("llama.cpp cannot save this model's state", _ALONE)
        self._saved = (length, state)

    def restore(self, length: int) -> int:
        """Go back to the checkpoint, which must not be after `length`; returns its position. Raises SpecdecError rather
        than leave a wrong state.
        """
        if self._saved is None or self._saved[0] > length:
            raise SpecdecError("this model's state cannot go back that far", _ALONE)
        saved, state = self._saved
        arguments = self._handle, state, len(state), self._sequence, _PARTIAL
        restored = self._call(lib.llama_state_seq_set_data_ext, *arguments)
        if restored != len(state) or not lib.llama_memory_seq_rm(self._memory, self._all, saved, -1):
            raise SpecdecError("llama.cpp cannot restore this model's state", _ALONE)
        return saved

    # Branches

    def grow(self, parents: Sequence[int], length: int) -> Layout:
        """Make room for nodes of a tree after a text of `length` tokens; see `Branches.grow`.

        Each cell that a sequence gets costs llama.cpp a third of a microsecond, so sequences keep the text that they
        have, and get only what it has grown by since. No cell may be given twice.
        """
        layout = self.branches.grow(parents)
        for source, goal, depth in layout.copies:
            if source:
                lib.llama_memory_seq_cp(self._memory, 0, goal, self._shared[goal], length)
            first = length if source else self._shared[goal]
            lib.llama_memory_seq_cp(self._memory, source, goal, first, length + depth)
            self._shared[goal] = length
        return layout

    def keep(self, path: Sequence[int], length: int) -> None:
        """End the tree: the nodes on this path follow the text of `length` tokens, the others are dropped."""
        branches = self.branches
        sequence = branches.sequence(path[-1]) if path else 0
        if sequence:
            lib.llama_memory_seq_rm(self._memory, 0, length, -1)
            lib.llama_memory_seq_cp(self._memory, sequence, 0, length, length + len(path))
        for other in range(1, branches.used):
            lib.llama_memory_seq_rm(self._memory, other, length, -1)
        if len(branches) > len(path):
            self.drop(length + len(path))
        branches.clear()

    # Files

    def save(self, path: Path, tokens: Sequence[int]) -> int:
        """Write the text's cells and its tokens to a file. Returns the bytes that it should have; 0 on an error."""
        array = (lib.llama_token * len(tokens))(*tokens)
        arguments = self._handle, os.fsencode(path), self._sequence, array, len(tokens)
        return int(self._call(lib.llama_state_seq_save_file, *arguments, allowed_s=_MOVING_S))

    def load(self, path: Path, most: int) -> list[int]:
        """Load the cells of a file; returns their tokens, none if llama.cpp refuses it. The cache must be empty.

        llama.cpp aborts the process on a truncated file, and doesn't detect changed bytes, so callers check the
        checksum first.
        """
        array, count = (lib.llama_token * most)(), ctypes.c_size_t()
        name = os.fsencode(path)
        arguments = self._handle, name, self._sequence, array, most, ctypes.byref(count)
        loaded = self._call(lib.llama_state_seq_load_file, *arguments, allowed_s=_MOVING_S)
        self.last_pass = 0
        return list(array[: count.value]) if loaded else []
