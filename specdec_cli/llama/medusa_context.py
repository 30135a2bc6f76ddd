"""Medusa heads (Cai et al., arXiv 2401.10774), as a draft model: all places of a draft come from one row of the target.

They keep nothing of the text. The row is the one whose logits gave the pending token; of head k comes the token in
place k after it, which knows nothing of those between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.ggml_graph import GgmlGraph
from specdec_cli.llama.hidden_rows import OUTPUT, HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model

Weight = tuple[int, tuple[int, ...], NDArray[np.uint8]]
"""ggml's number of the type, the shape as in a file, the bytes."""


class MedusaContext(LlamaContext):
    """heads: of each its block's matrix and bias, and its output matrix, (width, words), checked. words: the token ids
    of these; None: all. device: of the graph, empty for the CPU. target: a context of `model`, which has read nothing.

    `longest`: the most tokens of a draft after what was read last: none where the target's row is not known.
    Raises SpecdecError if llama.cpp does not give such rows, or cannot compute the heads.
    """

    def __init__(
        self,
        heads: Sequence[Sequence[Weight]],
        words: NDArray[np.int64] | None,
        device: str,
        model: Model,
        threads: int,
        interrupt: Interrupt,
        target: LlamaContext,
        branches: int = 1,
    ) -> None:
        super().__init__(model, target.n_ctx, branches, threads, interrupt, branches, target.passes)
        self.rewinds, self.max_branches = True, branches
        width = heads[0][0][1][0]
        if int(lib.llama_model_n_embd_out(model.handle)) != width:
            raise SpecdecError(f"these heads read rows of {width} numbers, not the target's", "Use its own heads.")
        target.hidden = self._hidden = HiddenRows(target.passes.handle, width, [OUTPUT], target.passes.all_rows)
        try:
            self._hidden.require_given(lambda: target.decode((0,)))
            target.rewind(0)
            self._graph = _graph(heads, device, threads)
        except SpecdecError:
            target.hidden = None
            lib.llama_set_embeddings(target.passes.handle, False)
            raise
        self._words = words
        self._rows: Logits = np.full((len(heads), self.n_vocab), -np.inf, np.float32)
        self.longest = 0
        self._drafts, self._depth = False, 0
        self._depths: list[int] = []
        """Of a tree's nodes, by number: which head follows."""

    def begin(self, text: Sequence[int]) -> int:
        """There is nothing to read of it."""
        self.rewind(0)
        self.length = len(text) - 1
        return self.length

    def begin_draft(self) -> None:
        """What follows is a draft, whose rows are there already."""
        self._drafts, self._depth = True, 0

    def end_draft(self, length: int) -> None:
        self.rewind(length)

    def decode(self, tokens: Sequence[int], all_rows: bool = False, unread: int = 0) -> Logits:
        """The row of the first head after the last token; in a draft, that of the next head."""
        self.length += len(tokens)
        if self._drafts:
            self._depth += len(tokens)
            return self._rows[self._depth : self._depth + 1]
        pending = self.length - 1
        rows = self._graph.compute(self._hidden.before(pending, 1)[0])
        self.longest = len(rows) if self._hidden.knows(pending) else 0
        if self._words is None:
            self._rows[:] = rows
        else:
            self._rows[:, self._words] = rows
        return self._rows[:1]

    def grow(self, tokens: Sequence[int], parents: Sequence[int], unread: int = 0) -> Logits:
        """The rows after nodes of a tree, each by the head of its depth."""
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        return self._rows[self._depths[-len(tokens) :]]

    def keep(self, path: Sequence[int], ahead: Sequence[int] = ()) -> None:
        self.length += len(path)
        self.rewind(self.length)

    def rewind(self, length: int) -> None:
        """No draft outlives it."""
        self._drafts, self._depth = False, 0
        self._depths.clear()
        self.length = min(self.length, length)

    def set_threads(self, threads: int) -> None:
        self.threads = threads
        self._graph.set_threads(threads)

    def close(self) -> None:
        """Free the heads. The passes are the target's."""
        self._graph.close()


def _graph(heads: Sequence[Sequence[Weight]], device: str, threads: int) -> GgmlGraph:
    """All heads, computed at once."""
    tensors = 1 + 8 * len(heads)
    graph = GgmlGraph(device, tensors, threads)
    try:
        row = graph.input(heads[0][0][1][0])
        results = []
        for weights in heads:
            block, bias, output = (graph.weight(*weight) for weight in weights)
            inner = graph.apply("silu", graph.apply("add", graph.apply("mul_mat", block, row), bias))
            results.append(graph.apply("mul_mat", output, graph.apply("add", row, inner)))
        graph.finish(results, heads[0][2][1][1])
    except SpecdecError:
        graph.close()
        if device:  # it lacks a kernel, or memory
            return _graph(heads, "", threads)
        raise
    return graph
