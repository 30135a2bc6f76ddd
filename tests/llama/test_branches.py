"""Nodes of a tree and the sequences they belong to: each must see what it follows, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.llama.branches import Branches


class Cache:
    """What llama.cpp does: cells with a position, that belong to sequences."""

    def __init__(self, text):
        self.cells = [(position, {0}) for position in range(-text, 0)]

    def grow(self, layout):
        for source, goal, depth in layout.copies:
            for position, sequences in self.cells:
                if source in sequences and position < depth:
                    sequences.add(goal)
        for sequences, depth in zip(layout.sequences, layout.depths, strict=True):
            for sequence in sequences:
                last = max((position for position, own in self.cells if sequence in own), default=-1)
                assert depth == last + 1, "llama.cpp wants each sequence to go on where it ends"
            assert len(set(sequences)) == len(sequences)
            self.cells.append((depth, set(sequences)))

    def seen(self, sequence, depth):
        return [i for i, (position, own) in enumerate(self.cells) if sequence in own and position <= depth]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=st.integers(1, 3), passes=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_each_node_sees_what_it_follows_and_nothing_else(text, passes, seed):
    rng = np.random.default_rng(seed)
    branches, cache, parents = Branches(64), Cache(text), []
    for size in passes:
        new = [int(rng.integers(-1, len(parents) + i)) for i in range(size)]
        layout = branches.grow(new)
        parents += new
        cache.grow(layout)
    leaves = sum(node not in parents for node in range(len(parents)))
    assert len({sequence for _, own in cache.cells for sequence in own}) == leaves
    for node in range(len(parents)):
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        position, own = cache.cells[text + node]
        assert position == len(path) - 1
        expected = [*range(text), *(text + above for above in path[::-1])]
        for sequence in {*own, branches.sequence(node)}:
            assert cache.seen(sequence, position) == expected


def test_a_forgotten_fork_would_be_seen():
    """Negative control: the same cache, with the copies left out."""
    branches, cache = Branches(8), Cache(2)
    cache.grow(branches.grow((-1, 0)))
    layout = branches.grow((0,))
    layout.copies.clear()
    with pytest.raises(AssertionError):
        cache.grow(layout)
