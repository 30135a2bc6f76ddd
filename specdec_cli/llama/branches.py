"""Which of llama.cpp's sequences the nodes of a token tree belong to.

llama.cpp knows no trees, only sequences that may share cells of the cache: a node belongs to the sequence of each leaf
below it, and so attends to its ancestors and to nothing else. Sequence 0 is the text itself, and the first branch that
leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How to append nodes. sequences and depths: of each node. copies: (from, to, depth), to be made before: the text,
    and the cells of one sequence as far as that depth (exclusive, the first node's is 0), belong to another one too.
    """

    sequences: list[list[int]]
    depths: list[int]
    copies: list[tuple[int, int, int]]


class Branches:
    """A tree that grows from the end of a text. most: how many sequences there may be."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def __len__(self) -> int:
        return len(self._parents) - 1

    def clear(self) -> None:
        """Back to the text alone."""
        self.used = 1
        """Sequences that there are."""
        # Of the text's end, then of each node: its parent, its sequence, its depth, whether a node continues that.
        self._parents, self._sequence, self._depth, self._continued = [-1], [0], [-1], [False]

    def grow(self, parents: Sequence[int]) -> Layout:
        """Append nodes, each to one of before or to the text (-1). Raises ValueError if there are too many branches."""
        old = len(self._parents)
        layout = Layout([], [], [])
        for above in (parent + 1 for parent in parents):
            depth = self._depth[above] + 1
            if self._continued[above]:
                sequence = self.used
                if sequence == self._most:
                    raise ValueError(f"a tree of more than {self._most} branches")
                self.used += 1
                node = above
                while node >= old:  # ancestors that come with the same pass
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
        """One that leads through a node; -1 is the text."""
        return self._sequence[node + 1]
