"""The cells of a context's cache, and which of llama.cpp's sequences they belong to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_cli.llama import computing
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.computing import Call

_MOVING_S = 60.0
"""How long a text's cells may take over the network."""


class Cells:
    """The memory of a text, and of a tree of up to `branches` sequences at its end. sequence: the text's; a tree needs
    it to be 0, and all other sequences.
    """

    def __init__(self, handle: Any, branches: int, sequence: int = 0, call: Call = computing.call) -> None:
        self._call = call
        self._handle, self._memory, self._sequence = handle, lib.llama_get_memory(handle), sequence
        self._shared = [0] * branches
        """How much of the text belongs to each sequence; unused for sequence 0, which has all of it."""

    @property
    def length(self) -> int:
        """Tokens of the text, as llama.cpp counts them."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._sequence)) + 1

    @property
    def can_move(self) -> bool:
        """Whether cells can be given other positions."""
        return bool(lib.llama_memory_can_shift(self._memory))

    def copy(self, other: Cells, length: int) -> None:
        """Begin as another text of the same context does, with as many of its tokens. This one must be empty."""
        lib.llama_memory_seq_cp(self._memory, other._sequence, self._sequence, 0, length)

    def share(self, source: int, goal: int, length: int, depth: int) -> None:
        """Let sequence `goal` begin as `source`: with the text of `length` tokens, and `depth` nodes of its branch.

        Each cell that is given to a sequence costs llama.cpp a third of a microsecond, so the text stays with those
        that it was once given to, and they are given what it has grown by since. None may be given twice.
        """
        if source:
            lib.llama_memory_seq_cp(self._memory, 0, goal, self._shared[goal], length)
        first = length if source else self._shared[goal]
        lib.llama_memory_seq_cp(self._memory, source, goal, first, length + depth)
        self._shared[goal] = length

    def keep(self, sequence: int, used: int, length: int, count: int) -> None:
        """Make the first `count` nodes of a sequence text. used: sequences that the tree has."""
        if sequence:
            lib.llama_memory_seq_rm(self._memory, 0, length, -1)
            lib.llama_memory_seq_cp(self._memory, sequence, 0, length, length + count)
        for other in range(1, used):
            lib.llama_memory_seq_rm(self._memory, other, length, -1)

    def drop(self, length: int) -> bool:
        """Take all cells from position `length` on from the text and its tree. False: llama.cpp refused."""
        self._shared = [min(shared, length) for shared in self._shared]
        which = -1 if len(self._shared) > 1 else self._sequence
        return bool(lib.llama_memory_seq_rm(self._memory, which, length, -1))

    def forget(self, first: int, count: int) -> None:
        """Take `count` cells from position `first` on from the text, and move those after them up. There must be no
        tree: other sequences lose what they share of the text.
        """
        for other in range(1, len(self._shared)):
            lib.llama_memory_seq_rm(self._memory, other, -1, -1)
        self._shared = [0] * len(self._shared)
        lib.llama_memory_seq_rm(self._memory, self._sequence, first, first + count)
        lib.llama_memory_seq_add(self._memory, self._sequence, first + count, -1, -count)

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

    def clear(self) -> None:
        which = -1 if len(self._shared) > 1 else self._sequence
        lib.llama_memory_seq_rm(self._memory, which, -1, -1)
        self._shared = [0] * len(self._shared)
