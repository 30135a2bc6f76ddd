"""llama.cpp's own context, and its passes: a batch in, rows of logits out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama import computing, extensions, library
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.decode_batch import Batch
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import POLL, Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.remote_calls import PassPatience

N_BATCH = 512
"""Tokens per llama_decode. llama.cpp computes in pieces of 512; more would only delay Ctrl-C on a GPU, whose passes
cannot be aborted."""

MAX_SNAPSHOTS = 8
"""The longest draft that a recurrent state is kept for at each token, since each costs a whole state. llama.cpp's
graph has no room for many: it aborts the process from 10 on for a Nemotron-H of 42 layers, from 22 on for an LFM2."""

MOST_SEQUENCES = 256
"""What llama.cpp is built for (LLAMA_MAX_SEQ); it aborts the process beyond."""

# The bindings' own declaration returns a pointer object; the plain address is what is compared from pass to pass.
_get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", lib._lib))


class HeadKind(NamedTuple):
    """A head on another context, `target`: a model's next-token layers, or a model of its own. width: of the hidden row
    that it reads with each token.
    """

    target: Any
    nextn: bool
    width: int


class Piece(NamedTuple):
    """What a text has to read next: tokens from a position on. all_rows: but those of the first `unread`; or just the
    last one. hidden: where the hidden rows of the tokens are kept, if anyone needs them.
    """

    sequence: int
    tokens: Sequence[int]
    first: int
    all_rows: bool
    unread: int = 0
    hidden: HiddenRows | None = None


class Passes:
    """One llama.cpp context with one reused batch. Arguments: n_ctx: tokens of the cache, over all sequences. max_rows:
    of logits that a sequence may get of a pass. sequences: how many there may be, which share the cache. head: that
    it is one, of which kind.

    Raises SpecdecError if the cache does not fit in memory.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        sequences: int = 1,
        all_rows: int | None = None,
        head: HeadKind | None = None,
    ) -> None:
        self.max_rows, self.all_rows = max_rows, all_rows or max_rows
        self.call, self._free, self.remote = model.call, model.free, model.remote is not None
        self._patience = PassPatience(model.n_bytes)
        self.handle = _opened(model, n_ctx, (self.max_rows, self.all_rows), threads, interrupt, sequences, head)
        self._turn = computing.turn(model.offloaded)
        self.use_threads = partial(computing.use_threads, self.handle, offloaded=model.offloaded)
        """Lets passes compute with so many CPU threads from now on."""
        self.use_threads(threads)
        self.n_ctx: int = min(n_ctx, lib.llama_n_ctx(self.handle))  # llama.cpp rounds up to a multiple of 256
        self.batch = Batch(N_BATCH, self.n_ctx, sequences, head.width if head else 0)
        self.decode_s = 0.0
        """Seconds spent in llama_decode since the context was made, waiting for the device included."""
        self.on_pass: Callable[[int, float], None] | None = None
        """Called after each pass: its tokens, and its seconds."""
        self.interrupt = interrupt
        self.most_read = 0
        """Tokens of a prompt that a pass reads, at most; 0: as many as a context likes."""
        self._address = 0
        self._rows: Logits = np.empty((0, model.n_vocab), np.float32)

    def read(self, piece: Piece) -> Logits:
        """One pass over a piece of the one text. Returns its rows, and more below them."""
        self.batch.fill(piece.tokens, piece.first, piece.all_rows, piece.unread)
        rows = self.run()
        if piece.hidden is not None:
            piece.hidden.take(piece.first, len(piece.tokens))
        return rows

    def lend(self, context: Any, text: Sequence[int]) -> None:
        """Give a context what others hold of a text's beginning: here there are no others."""

    def run(self) -> Logits:
        """One pass over the batch. Returns its rows in their order, and more below them; valid until the next pass."""
        address = self._timed(lib.llama_decode, self.batch.struct)
        if address != self._address:
            # llama.cpp's buffer rarely moves, so it is not wrapped for every pass. It has grown to the most rows ever
            # asked for; slices of the array never go beyond that.
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._address = address
            self._rows = np.ctypeslib.as_array(pointer, (self.all_rows, self._rows.shape[1]))
        return self._rows

    def _timed(self, compute: Callable[[Any, Any], int], batch: Any) -> int:
        """Compute a batch; returns where its logits are. Raises Interrupted, or SpecdecError if llama.cpp fails."""
        allowed_s = self._patience.of(batch.n_tokens)
        with self._turn:
            before = perf_counter()
            code, address = self.call(_computed, compute, self.handle, batch, allowed_s=allowed_s)
            seconds = perf_counter() - before
        self._patience.saw(batch.n_tokens, seconds)
        self.decode_s += seconds
        if code == 2 or (code and self.interrupt.is_set()):
            raise Interrupted
        if code:
            reason = library.last_error() or f"code {code}"
            raise SpecdecError(
                f"llama.cpp failed to decode: {reason}", "Try a smaller context (-c) or fewer GPU layers (-ngl)."
            )
        if self.on_pass is not None:
            self.on_pass(batch.n_tokens, seconds)
        return int(address)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """One pass of an encoder over rows, (n, any): what it makes of them, (n, width of the head's own rows)."""
        # An encoder looks at no places, but llama.cpp wants those that come next.
        first = lib.llama_memory_seq_pos_max(lib.llama_get_memory(self.handle), 0) + 1
        with _rows_alone(rows, first) as struct:
            self._timed(lib.llama_encode, struct)
            made: NDArray[np.float32] = extensions.hidden_rows(self.handle, len(rows), self.batch.rows.shape[1]).copy()
            return made

    def close(self) -> None:
        """Free the cache and the batch."""
        if self.handle:
            self._address, self._rows = 0, self._rows[:0].copy()
            self._free(lib.llama_free, self.handle)
            self.batch.free()
            self.handle = None


def _computed(compute: Callable[[Any, Any], int], handle: Any, batch: Any) -> tuple[int, int]:
    """Compute a batch; returns llama.cpp's code, and where the logits are."""
    code = compute(handle, batch)
    return code, _get_logits(handle)  # on a GPU this is what waits


@contextmanager
def _rows_alone(rows: NDArray[np.float32], first: int) -> Iterator[Any]:
    """A batch of rows without tokens, in places from `first` on."""
    count, width = rows.shape
    struct = lib.llama_batch_init(count, width, 1)
    try:
        np.ctypeslib.as_array(struct.embd, (count, width))[:] = rows
        for i in range(count):
            struct.pos[i], struct.n_seq_id[i], struct.seq_id[i][0], struct.logits[i] = first + i, 1, 0, 1
        struct.n_tokens = count
        yield struct
    finally:
        lib.llama_batch_free(struct)


def _opened(
    model: Model,
    n_ctx: int,
    rows: tuple[int, int],
    threads: int,
    interrupt: Interrupt,
    sequences: int,
    head: HeadKind | None,
) -> Any:
    """llama.cpp's own context. rows: the most of a sequence in a pass, and of all."""
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = N_BATCH
    params.n_threads = params.n_threads_batch = threads
    params.n_outputs_max_per_seq, params.n_outputs_max = rows
    params.n_seq_max, params.kv_unified = sequences, sequences > 1
    params.no_perf, params.pooling_type = True, lib.LLAMA_POOLING_TYPE_NONE  # a row of each token, if any
    if head is not None:
        params.ctx_other = head.target
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP if head.nextn else params.ctx_type
    elif not model.rewinds and rows[0] - 1 <= MAX_SNAPSHOTS:
        params.n_rs_seq = rows[0] - 1
    if POLL is not None:
        params.abort_callback = lib.ggml_abort_callback(POLL)
        params.abort_callback_data = interrupt.address
    library.recent_errors.clear()
    handle = model.call(lib.llama_init_from_model, model.handle, params)
    if interrupt.is_set():
        if handle:
            model.free(lib.llama_free, handle)
        raise Interrupted
    if not handle:
        reason = library.last_error() or "llama.cpp gave no reason"
        raise SpecdecError(
            f"no room for a context of {n_ctx} tokens of {model.path.name}: {reason}",
            "Give a smaller context (-c), or fewer GPU layers (-ngl).",
        )
    model.adapt(handle)
    return handle
