"""The cells of a text in llama.cpp's KV cache, and the ways back in it: positions, checkpoints, branches of a tree."""

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
"""How long a text's cells may take over the network."""

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: just the state that cannot be rewound


class KVCache:
    """The memory of a text, and of a tree at its end. sequence: the text's. A tree needs it to be 0, and all other
    sequences of these passes.

    A cache of keys and values can drop its last cells at any time: it `rewinds`. A recurrent state cannot. It goes back
    to the snapshots that llama.cpp took of the last pass, or to a checkpoint.
    """

    def __init__(self, passes: Passes, sequence: int) -> None:
        self._handle, self._call, self._sequence = passes.handle, passes.call, sequence
        self._all = -1 if passes.branches > 1 else sequence
        """The sequences of the text and its tree, as llama.cpp names them."""
        self._memory = lib.llama_get_memory(passes.handle)
        self.rewinds = passes.rewinds
        self.can_move = bool(lib.llama_memory_can_shift(self._memory))
        """Whether cells can be given other positions."""
        self.last_pass = 0
        """Tokens of the last pass, as far as its snapshots are still valid."""
        self._snapshots: int = lib.llama_n_rs_seq(passes.handle)  # 0: llama.cpp has none for this architecture
        self._saved: tuple[int, ctypes.Array[ctypes.c_uint8]] | None = None
        self.branches = Branches(passes.branches)
        """The nodes of the tree at the end of the text."""
        self._shared = [0] * passes.branches
        """How much of the text belongs to each sequence; unused for sequence 0, which has all of it."""

    @property
    def length(self) -> int:
        """Tokens of the text, as llama.cpp counts them."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._sequence)) + 1

    # Positions

    def can_drop(self, count: int) -> bool:
        """Whether the last tokens can be dropped. llama.cpp does not check whether the last pass left a snapshot: it
        would take a stale one.
        """
        return self.rewinds or count <= min(self._snapshots, self.last_pass - 1)

    def drop(self, length: int) -> None:
        """Take all cells from position `length` on from the text and its tree. Raises SpecdecError if llama.cpp
        refuses.
        """
        self.last_pass = 0
        self._shared = [min(shared, length) for shared in self._shared]
        if not lib.llama_memory_seq_rm(self._memory, self._all, length, -1):
            raise SpecdecError("llama.cpp refused to drop rejected tokens from its cache", "Run with --drafter none.")

    def clear(self) -> None:
        lib.llama_memory_seq_rm(self._memory, self._all, -1, -1)
        self._shared = [0] * len(self._shared)
        self._saved = None

    def forget(self, first: int, count: int) -> None:
        """Take `count` cells from position `first` on from the text, and move those after them up. There must be no
        tree: other sequences lose what they share of the text.
        """
        for other in range(1, len(self._shared)):
            lib.llama_memory_seq_rm(self._memory, other, -1, -1)
        self._shared = [0] * len(self._shared)
        lib.llama_memory_seq_rm(self._memory, self._sequence, first, first + count)
        lib.llama_memory_seq_add(self._memory, self._sequence, first + count, -1, -count)

    def copy(self, other: KVCache, length: int) -> None:
        """Begin as another text of the same passes does, with as many of its tokens. This one must be empty."""
        lib.llama_memory_seq_cp(self._memory, other._sequence, self._sequence, 0, length)

    # Checkpoints

    def checkpoint(self, length: int) -> None:
        """Make what follows the present length something that can be taken back. Free where the cache can drop it; with
        snapshots, which caches of several rows have, a part of the very next pass can be, once.
        """
        if self.rewinds or self._snapshots:
            return
        size = lib.llama_state_seq_get_size_ext(self._handle, self._sequence, _PARTIAL)
        state = self._saved[1] if self._saved and len(self._saved[1]) == size else (ctypes.c_uint8 * size)()
        arguments = self._handle, state, size, self._sequence, _PARTIAL
        if self._call(lib.llama_state_seq_get_data_ext, *arguments) != size:
            raise SpecdecError("llama.cpp cannot save this model's state", "Run it alone: --drafter none.")
        self._saved = (length, state)

    def restore(self, length: int) -> int:
        """Go back to the checkpoint, which must not lie beyond `length`; returns where it lies. Raises SpecdecError
        rather than leave a wrong state.
        """
        if self._saved is None or self._saved[0] > length:
            raise SpecdecError("this model cannot go back so far", "Run it alone: --drafter none.")
        saved, state = self._saved
        arguments = self._handle, state, len(state), self._sequence, _PARTIAL
        restored = self._call(lib.llama_state_seq_set_data_ext, *arguments)
        if restored != len(state) or not lib.llama_memory_seq_rm(self._memory, self._all, saved, -1):
            raise SpecdecError("llama.cpp cannot restore this model's state", "Run it alone: --drafter none.")
        return saved

    # Branches

    def grow(self, parents: Sequence[int], length: int) -> Layout:
        """Make room for nodes of a tree after a text of `length` tokens; see `Branches.grow`.

        Each cell that is given to a sequence costs llama.cpp a third of a microsecond, so the text stays with those
        that it was once given to, and they are given what it has grown by since. None may be given twice.
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

    def save(self, path: Path, tokens: Sequence[int]) -> bool:
        """Write the text's cells and its tokens to a file."""
        array = (lib.llama_token * len(tokens))(*tokens)
        arguments = self._handle, os.fsencode(path), self._sequence, array, len(tokens)
        return bool(self._call(lib.llama_state_seq_save_file, *arguments, allowed_s=_MOVING_S))

    def load(self, path: Path, most: int) -> list[int]:
        """Take the cells of a file, which gives their tokens; none if llama.cpp refuses it. The cache must be empty."""
        array, count = (lib.llama_token * most)(), ctypes.c_size_t()
        name = os.fsencode(path)
        arguments = self._handle, name, self._sequence, array, most, ctypes.byref(count)
        loaded = self._call(lib.llama_state_seq_load_file, *arguments, allowed_s=_MOVING_S)
        return list(array[: count.value]) if loaded else []
