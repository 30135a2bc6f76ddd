"""Medusa heads (Cai et al., arXiv 2401.10774), as a draft model: one row of the target gives a whole draft.

They keep no state. They read the row whose logits gave the pending token; head k predicts the k-th token after it,
without knowing those between.

llama.cpp has no graph for them, so ggml's functions compute them. numpy with 32-bit weights is slower, because it reads
four times the bytes of Q8_0: on one core of an AMD EPYC, it takes 1.3 times as long for the bundled target's Medusa
heads, and 3.0 times for four heads of 1536 x 32,000 (2.0 times for F16, 1.1 for F32).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama import computing, library
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.hidden_rows import OUTPUT, HiddenRows
from specdec_cli.llama.undeclared import InitParams, call

Weight = tuple[int, tuple[int, ...], NDArray[np.uint8]]
"""ggml's number of the type, the shape as in a GGUF file, the bytes."""

_F32 = 0
"""ggml's number of the type."""


class MedusaContext:
    """heads: for each, its block's matrix and bias and its output matrix (width, words), already checked. words: the
    token ids of the outputs; None: all. device: for the graph; empty: the CPU. target: a context that has read nothing;
    from now on it keeps the rows that the heads read.

    `longest`: the most tokens of a draft after the last token read; 0 if the target's row isn't known.
    Raises SpecdecError if llama.cpp doesn't give such rows, or can't compute the heads.
    """

    rewinds = True

    def __init__(
        self,
        heads: Sequence[Sequence[Weight]],
        words: NDArray[np.int64] | None,
        device: str,
        target: LlamaContext,
        threads: int,
        branches: int = 1,
    ) -> None:
        self.passes, self.threads = target.passes, threads
        self.n_ctx, self.n_vocab, self.max_rows = target.n_ctx, target.n_vocab, branches
        handle, width = target.passes.handle, heads[0][0][1][0]
        if int(lib.llama_model_n_embd_out(target.passes.model.handle)) != width:
            what = f"these heads read rows of {width} numbers; the target's have another width"
            raise SpecdecError(what, "Use heads made for this target.")
        target.hidden = self._hidden = HiddenRows(handle, width, [OUTPUT], target.passes.all_rows)
        try:
            self._hidden.require_given(lambda: target.decode((0,)))
            target.rewind(0)
            self._graph = _graph(heads, device, threads)
        except SpecdecError:
            self._keep_no_rows(target)
            raise
        self._target, self._words = target, words
        self._rows: Logits = np.full((len(heads), self.n_vocab), -np.inf, np.float32)
        self.length = self.longest = 0
        self._drafts, self._depth = False, 0
        self._depths: list[int] = []
        """For each node of a tree, by number: which head predicts the next token."""

    def unread(self, text: Sequence[int]) -> int:
        return 1

    def begin(self, text: Sequence[int]) -> int:
        """Start a text; the heads don't read it."""
        self.end_draft(0)
        self.length = len(text) - 1
        return self.length

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """The text isn't kept, so there is always room."""
        return news

    def begin_draft(self) -> None:
        """Begin a draft, whose rows are already computed."""
        self._drafts, self._depth = True, 0

    def end_draft(self, length: int) -> None:
        self._drafts = False
        self._depths.clear()
        self.rewind(length)

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        """The first head's row after the last token; in a draft, the next head's row."""
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

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """The rows after nodes of a tree, each from the head of its depth."""
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        return self._rows[self._depths[-len(tokens) :]]

    def keep(self, path: Sequence[int]) -> None:
        self.length += len(path)
        self.end_draft(self.length)

    def rewind(self, length: int) -> None:
        self.length = min(self.length, length)

    def set_threads(self, threads: int) -> None:
        self.threads = threads
        self._graph.set_threads(threads)

    def close(self) -> None:
        """Free the heads. The passes are the target's, which keeps no more rows."""
        self._keep_no_rows(self._target)
        self._graph.close()

    def _keep_no_rows(self, target: LlamaContext) -> None:
        """Let the target's passes give logits alone again; with rows, llama.cpp computes those of every token."""
        if target.hidden is self._hidden:
            target.hidden = None
            if self.passes.handle:
                lib.llama_set_embeddings(self.passes.handle, False)


def _graph(heads: Sequence[Sequence[Weight]], device: str, threads: int) -> _Graph:
    """The heads' graph on a device; on the CPU, if the device lacks a kernel or memory."""
    try:
        return _Graph(heads, device, threads)
    except SpecdecError:
        if not device:
            raise
        return _Graph(heads, "", threads)


class _Graph:
    """A ggml graph that computes all heads at once: for a row h of the target, head k gives output_k @ (h +
    silu(block_k @ h + bias_k)).

    device: a GPU's name; empty: the CPU. Raises SpecdecError if it can't be computed there.
    """

    def __init__(self, heads: Sequence[Sequence[Weight]], device: str, threads: int) -> None:
        cpu = call("ggml_backend_dev_by_type", 0)
        self._device = library.device_handle(device) if device else cpu
        self._on_cpu = self._device == cpu
        n_tensors = 1 + 8 * len(heads)
        size = n_tensors * call("ggml_tensor_overhead") + call("ggml_graph_overhead")
        self._context = call("ggml_init", InitParams(size, None, True))
        self._backend = call("ggml_backend_dev_init", self._device, None)
        self._buffer = 0
        try:
            self.set_threads(threads)
            self._build(heads)
        except SpecdecError:
            self.close()
            raise

    def _build(self, heads: Sequence[Sequence[Weight]]) -> None:
        context = self._context
        weights: list[tuple[int, NDArray[np.uint8]]] = []
        self._graph = call("ggml_new_graph", context)
        self._input = call("ggml_new_tensor_1d", context, _F32, heads[0][0][1][0])
        self._outputs: list[int] = []
        for head in heads:
            tensors = [call(f"ggml_new_tensor_{len(shape)}d", context, kind, *shape) for kind, shape, _ in head]
            weights += zip(tensors, (data for _, _, data in head), strict=True)
            block, bias, output = tensors
            inner = call("ggml_add", context, call("ggml_mul_mat", context, block, self._input), bias)
            row = call("ggml_add", context, self._input, call("ggml_silu", context, inner))
            self._outputs.append(call("ggml_mul_mat", context, output, row))
            call("ggml_build_forward_expand", self._graph, self._outputs[-1])
        self._rows = np.empty((len(heads), heads[0][2][1][1]), np.float32)
        nodes = [call("ggml_graph_node", self._graph, i) for i in range(call("ggml_graph_n_nodes", self._graph))]
        if not all(call("ggml_backend_dev_supports_op", self._device, node) for node in nodes):
            raise SpecdecError("this device cannot compute with these heads", "Use heads in another format.")
        self._buffer = call("ggml_backend_alloc_ctx_tensors", context, self._backend)
        if not self._buffer:
            raise SpecdecError("there is not enough memory for these heads", "Use smaller ones, or another drafter.")
        for tensor, data in weights:
            if call("ggml_nbytes", tensor) != data.nbytes:
                raise SpecdecError("the heads' weights have the wrong size", "Download the file again.")
            call("ggml_backend_tensor_set", tensor, data.ctypes.data, 0, data.nbytes)

    def set_threads(self, threads: int) -> None:
        """Set the CPU threads; a GPU uses none."""
        if self._on_cpu:
            computing.use_threads_of_graph(self._backend, threads)

    def compute(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """(heads, words); valid until the next call."""
        row = np.ascontiguousarray(row, np.float32)
        call("ggml_backend_tensor_set", self._input, row.ctypes.data, 0, row.nbytes)
        with computing.turn(offloaded=not self._on_cpu):
            code = computing.call(call, "ggml_backend_graph_compute", self._backend, self._graph)
        if code:
            raise SpecdecError(f"ggml failed to compute the heads: code {code}", "Use another drafter.")
        for tensor, goal in zip(self._outputs, self._rows, strict=True):
            call("ggml_backend_tensor_get", tensor, goal.ctypes.data, 0, goal.nbytes)
        return self._rows

    def close(self) -> None:
        for free, what in (("buffer_free", self._buffer), ("free", self._backend)):
            if what:
                call(f"ggml_backend_{free}", what)
        if self._context:
            call("ggml_free", self._context)
        self._buffer = self._backend = self._context = 0
