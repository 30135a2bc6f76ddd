"""Computations that llama.cpp has no graph for, through ggml's own functions in its libraries.

numpy with 32-bit weights takes longer, as it reads four times the bytes of Q8_0. On one core of an AMD EPYC it takes
1.3 times as long for the bundled target's Medusa heads, and 3.0 times for four heads of 1536 x 32,000 (2.0 times for
F16, 1.1 for F32).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama import computing, library
from specdec_cli.llama.ggml import InitParams, call

F32 = 0
"""ggml's number of the type."""


class GgmlGraph:
    """Tensors and what is computed of them, built once: `input`, `weight` and `apply`, then `finish`; computed often.

    device: a GPU's name; empty: the CPU. most: of tensors. Raises SpecdecError where it cannot be computed.
    """

    def __init__(self, device: str, most: int, threads: int) -> None:
        library.start()
        self._device = library.device_handle(device) if device else call("ggml_backend_dev_by_type", 0)
        self._on_cpu = self._device == call("ggml_backend_dev_by_type", 0)
        size = most * call("ggml_tensor_overhead") + call("ggml_graph_overhead")
        self._context = call("ggml_init", InitParams(size, None, True))
        self._graph = call("ggml_new_graph", self._context)
        self._backend = call("ggml_backend_dev_init", self._device, None)
        self._buffer = 0
        self._values: list[tuple[int, NDArray[np.uint8]]] = []
        self._input = self._width = 0
        self.set_threads(threads)

    def set_threads(self, threads: int) -> None:
        """A GPU has no use for them."""
        if self._on_cpu:
            computing.use_threads_of_graph(self._backend, threads)

    def input(self, width: int) -> int:
        """The row that comes with each computation."""
        self._width = width
        self._input = call("ggml_new_tensor_1d", self._context, F32, width)
        return int(self._input)

    def weight(self, kind: int, shape: Sequence[int], data: NDArray[np.uint8]) -> int:
        """A vector or a matrix. kind: ggml's number of its type. data: its bytes, which are copied by `finish`."""
        tensor = call(f"ggml_new_tensor_{len(shape)}d", self._context, kind, *shape)
        self._values.append((tensor, data))
        return int(tensor)

    def apply(self, operation: str, *tensors: int) -> int:
        """The result of mul_mat, add or silu."""
        return int(call(f"ggml_{operation}", self._context, *tensors))

    def finish(self, results: Sequence[int], length: int) -> None:
        """results: tensors of so many numbers each, which `compute` gives."""
        for tensor in results:
            call("ggml_build_forward_expand", self._graph, tensor)
        self._results = list(results)
        self._rows = np.empty((len(results), length), np.float32)
        nodes = [call("ggml_graph_node", self._graph, i) for i in range(call("ggml_graph_n_nodes", self._graph))]
        if not all(call("ggml_backend_dev_supports_op", self._device, node) for node in nodes):
            raise SpecdecError("this device cannot compute with these heads", "Use heads in another format.")
        self._buffer = call("ggml_backend_alloc_ctx_tensors", self._context, self._backend)
        if not self._buffer:
            raise SpecdecError("there is no room for these heads", "Use smaller ones, or another drafter.")
        for tensor, data in self._values:
            if call("ggml_nbytes", tensor) != data.nbytes:
                raise SpecdecError("the heads' weights are not as long as they should be", "Download the file again.")
            call("ggml_backend_tensor_set", tensor, data.ctypes.data, 0, data.nbytes)
        self._values.clear()

    def compute(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """(results, length); valid until the next."""
        row = np.ascontiguousarray(row, np.float32)
        call("ggml_backend_tensor_set", self._input, row.ctypes.data, 0, 4 * self._width)
        with computing.turn(offloaded=not self._on_cpu):
            code = computing.call(call, "ggml_backend_graph_compute", self._backend, self._graph)
        if code:
            raise SpecdecError(f"ggml failed to compute the heads: code {code}", "Use another drafter.")
        for tensor, goal in zip(self._results, self._rows, strict=True):
            call("ggml_backend_tensor_get", tensor, goal.ctypes.data, 0, goal.nbytes)
        return self._rows

    def close(self) -> None:
        """Free the tensors and the device's state."""
        for free, what in (("buffer_free", self._buffer), ("free", self._backend)):
            if what:
                call(f"ggml_backend_{free}", what)
        if self._context:
            call("ggml_free", self._context)
        self._buffer = self._backend = self._context = 0
