"""Assigns the nodes of a token tree to llama.cpp's sequences.

llama.cpp has no trees, only sequences that can share cells of the cache. A node belongs to the sequence of each leaf
below it, so it attends only to its ancestors. Sequence 0 is the text itself and the first branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How to append nodes. sequences, depths: for each node. copies: (source, destination, depth), to be made first:
    the destination sequence gets the text and the source's cells above that depth (the first node's is 0).
    """

    sequences: list[list[int]]
    depths: list[int]
    copies: list[tuple[int, int, int]]


class Branches:
    """A tree that grows from the end of a text. most: the maximum number of sequences."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def __len__(self) -> int:
        return len(self._parents) - 1

    def clear(self) -> None:
        self.used = 1
        """Sequences in use."""
        # For the text's end, then each node: its parent, sequence, depth, and whether a child continues the sequence.
        self._parents, self._sequence, self._depth, self._continued = [-1], [0], [-1], [False]

    def grow(self, parents: Sequence[int]) -> Layout:
        """Append nodes, each to an earlier one or the text (-1). Raises ValueError if there are too many branches."""
        old = len(self._parents)
        layout = Layout([], [], [])
        for above in (parent + 1 for parent in parents):
            depth = self._depth[above] + 1
            if self._continued[above]:
                sequence = self.used
                if sequence == self._most:
                    raise ValueError(f"the tree has more than {self._most} branches")
                self.used += 1
                node = above
                while node >= old:  # ancestors in the same pass
                    layout.sequences[node - old].append(sequence)
                    node = self._parents[node]
                layout.copies.append((self._sequence[node], sequence, self._depth[node] + 1))
            else:
                sequence = self._sequence[above]
                self._continued[above] = True
            layout.sequences.append([sequence])
            layout.depths.append(depth)
            self._parents.append(above)
            self._sequence.append(sequence)
            self._depth.append(depth)
            self._continued.append(False)
        return layout

    def sequence(self, node: int) -> int:
        """A sequence that contains a node; -1 is the text."""
        return self._sequence[node + 1]
