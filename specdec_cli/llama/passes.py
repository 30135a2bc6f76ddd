"""A llama.cpp context and its passes: a batch in, rows of logits out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.types import MAX_SNAPSHOTS, Logits
from specdec_cli.llama import computing, library
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.branches import Layout
from specdec_cli.llama.hidden_rows import HiddenRows, last_rows, rows_at
from specdec_cli.llama.interrupt import POLL, Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.remote_calls import PassPatience

N_BATCH = 512
"""Tokens per llama_decode. llama.cpp computes in ubatches of 512; more would only delay Ctrl-C on a GPU, whose passes
can't be aborted."""

_CPU_CHUNK = 128
"""Tokens of a long text that a CPU reads at once. It takes 2 to 3 % longer than one pass, but shows progress."""

_CELLS = 256
"""llama.cpp rounds a cache up to a multiple of this. It computes in ubatches of no more tokens than it was asked for,
and where a recurrent state has snapshots, a ubatch of ten or fewer would abort the process."""

_NEVER = -1e30
"""The logit of tokens that are never to be written: finite, so that differences of logits are, too."""

MAX_SEQUENCES = 256
"""llama.cpp's limit (LLAMA_MAX_SEQ); beyond it, it aborts the process."""

# The bindings' declaration returns a pointer object, but `run` compares plain addresses from pass to pass.
_get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", lib._lib))


class HeadKind(NamedTuple):
    """A head on another context, `target`. nextn: whether it is next-token layers; otherwise, it's a separate model.
    width: of the hidden row that it reads with each token.
    """

    target: Any
    nextn: bool
    width: int


class Chunk(NamedTuple):
    """What a text reads next: tokens from position `first` on. all_rows: compute all rows but those of the first
    `unread` tokens; otherwise, only the last one. hidden: where to keep the tokens' hidden rows, if they are needed.
    meanwhile: called once the pass has begun, of use where it `overlaps`; ignored in passes that other texts share.
    """

    sequence: int
    tokens: Sequence[int]
    first: int
    all_rows: bool
    unread: int = 0
    hidden: HiddenRows | None = None
    meanwhile: Callable[[], None] | None = None


class Batch:
    """Room for `size` tokens, each in up to `branches` sequences; usually in sequence 0. width: of the hidden row that
    comes with each token, for a head; 0: there is none.
    """

    def __init__(self, size: int, n_ctx: int, branches: int, width: int = 0) -> None:
        self.struct = lib.llama_batch_init(size, 0, branches)
        view = np.ctypeslib.as_array
        self._token, self._position = view(self.struct.token, (size,)), view(self.struct.pos, (size,))
        self._output, self._n_seq = view(self.struct.logits, (size,)), view(self.struct.n_seq_id, (size,))
        self._output[:] = 0
        self._positions = np.arange(n_ctx, dtype=np.int32)
        self.struct.n_tokens = size
        self.clear_tree()
        self.rows = np.zeros((size, width), np.float32)
        """Fill these before a pass."""
        if width:
            self.struct.embd = self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def fill(self, tokens: Sequence[int], first: int, all_rows: bool, unread: int = 0) -> None:
        """Fill in text from position `first` on; compute its last row, or with all_rows all but the first `unread`."""
        self.struct.n_tokens = count = len(tokens)
        if count == 1:  # most passes of a draft model: slices would be slower
            self._token[0], self._position[0], self._output[0] = tokens[0], first, 1
        else:
            self._token[:count] = tokens
            self._position[:count] = self._positions[first : first + count]
            self._output[:count] = all_rows
            self._output[:unread] = 0
            self._output[count - 1] = 1

    @property
    def n_rows(self) -> int:
        """How many rows the pass computes."""
        return int(np.count_nonzero(self._output[: self.struct.n_tokens]))

    def ask_for_none(self) -> None:
        """Compute no rows for the tokens that were filled in."""
        self._output[: self.struct.n_tokens] = 0

    def fill_texts(self, chunks: Iterable[Chunk]) -> None:
        """Fill in chunks of several texts."""
        end = 0
        for sequence, tokens, first, all_rows, unread, *_ in chunks:
            start, end = end, end + len(tokens)
            self._token[start:end] = tokens
            self._position[start:end] = self._positions[first : first + len(tokens)]
            self._output[start:end] = all_rows
            self._output[start : start + unread] = 0
            self._output[end - 1] = 1
            for i in range(start, end):
                self.struct.seq_id[i][0] = sequence
        self.struct.n_tokens = end

    def fill_tree(self, tokens: Sequence[int], layout: Layout, first: int, unread: int) -> None:
        """Fill in nodes of a tree after a text of `first` tokens; compute no rows for the first `unread`."""
        self.struct.n_tokens = count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = layout.depths
        self._position[:count] += first
        self._output[:count] = 1
        self._output[:unread] = 0
        for i, sequences in enumerate(layout.sequences):
            self._n_seq[i] = len(sequences)
            for j, sequence in enumerate(sequences):
                self.struct.seq_id[i][j] = sequence

    def clear_tree(self) -> None:
        """Put the places that `fill_tree` used back into sequence 0."""
        count = self.struct.n_tokens
        self._n_seq[:count] = 1
        for i in range(count):
            self.struct.seq_id[i][0] = 0

    def free(self) -> None:
        self.struct.embd = None  # numpy's memory, not llama.cpp's
        lib.llama_batch_free(self.struct)


class Passes:
    """One llama.cpp context: a KV cache and the passes that fill it, with one reused batch.

    n_ctx: tokens of the cache, over all texts. max_rows: rows of logits that a text may get from a pass. branches: of a
    tree at the end of the text. texts: how many share the cache; if several, none has a tree. head: its kind, for a
    head. snapshots: take those of a recurrent state if the rows are few enough; a draft model, which reads token by
    token, goes back to checkpoints. Raises SpecdecError if the cache doesn't fit in memory.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        branches: int = 1,
        texts: int = 1,
        head: HeadKind | None = None,
        snapshots: bool = True,
    ) -> None:
        self.model, self.max_rows, self.branches, self.texts = model, max_rows, branches, texts
        self.all_rows = texts * max_rows
        if branches > 1 and head is None:
            # A tree's pass may also need logits for tokens that it reads again, because hidden rows come with them.
            self.all_rows = min(2 * max_rows, N_BATCH)
        self.rewinds = model.rewinds or head is not None  # a head's own layers aren't recurrent
        """Whether the last tokens can be dropped at any time; otherwise only back to a snapshot or checkpoint."""
        self.call, self._free = model.call, model.free
        self._patience = PassPatience(model.n_bytes)
        self.interrupt = interrupt
        self.handle = self._opened(n_ctx, max(branches, texts), head, snapshots)
        self._turn, self._offloaded = computing.turn(model.offloaded), model.offloaded
        self.set_threads(threads)
        self.n_ctx: int = min(n_ctx, lib.llama_n_ctx(self.handle))
        self.batch = Batch(N_BATCH, self.n_ctx, max(branches, texts), head.width if head else 0)
        self.decode_s = 0.0
        """Seconds spent in llama_decode since the context was made, including waiting for the device, but for what was
        done meanwhile.
        """
        self.overlaps = model.on_gpu and model.offloaded and library.has_cuda()
        """Whether a pass runs on a GPU while this program does something else. Of GPUs, only NVIDIA's were tried."""
        self.on_pass: Callable[[int, float], None] | None = None
        """Called after each pass with its tokens and its seconds."""
        self.most_read = N_BATCH if model.on_gpu else _CPU_CHUNK
        """The most tokens of a long text that a pass reads."""
        self.n_vocab = model.n_vocab
        self._address = 0
        self._rows: Logits = np.empty((0, model.n_vocab), np.float32)

    def _opened(self, n_ctx: int, sequences: int, head: HeadKind | None, snapshots: bool) -> Any:
        """llama.cpp's own context."""
        model = self.model
        params = lib.llama_context_default_params()
        params.n_ctx = -(-n_ctx // _CELLS) * _CELLS
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_outputs_max_per_seq, params.n_outputs_max = self.max_rows, self.all_rows
        params.n_seq_max, params.kv_unified = sequences, sequences > 1
        params.no_perf, params.pooling_type = True, lib.LLAMA_POOLING_TYPE_NONE  # hidden rows per token, if any
        if head is not None:
            params.ctx_other = head.target
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP if head.nextn else params.ctx_type
        elif snapshots and not model.rewinds and self.max_rows - 1 <= MAX_SNAPSHOTS:
            params.n_rs_seq = self.max_rows - 1
        params.abort_callback = lib.ggml_abort_callback(POLL)
        params.abort_callback_data = self.interrupt.address
        library.recent_errors.clear()
        handle = model.call(lib.llama_init_from_model, model.handle, params)
        if self.interrupt.is_set():
            if handle:
                model.free(lib.llama_free, handle)
            raise Interrupted
        if not handle:
            reason = library.last_error() or "llama.cpp gave no reason"
            raise SpecdecError(
                f"llama.cpp cannot create a context of {n_ctx} tokens for {model.path.name}: {reason}",
                "Use a smaller context (-c), fewer GPU layers (-ngl), or the draft model on the CPU (-ngld 0).",
            )
        model.adapt(handle)
        return handle

    def set_threads(self, threads: int) -> None:
        self.threads = threads
        computing.use_threads(self.handle, threads, self._offloaded)

    def read(self, chunk: Chunk) -> Logits:
        """Run one pass over a chunk of the only text. Returns its rows; the array may have more below them."""
        self.batch.fill(chunk.tokens, chunk.first, chunk.all_rows, chunk.unread)
        rows = self.run(chunk.meanwhile)
        if chunk.hidden is not None:
            chunk.hidden.take(chunk.first, len(chunk.tokens))
        return rows

    def run(self, meanwhile: Callable[[], None] | None = None) -> Logits:
        """Run the batch. Returns its rows in order; the array may have more below them. Valid until the next pass."""
        address = self._timed(lib.llama_decode, self.batch.struct, meanwhile)
        if address != self._address:
            # llama.cpp's buffer rarely moves, so the array isn't made for every pass. The buffer may be smaller than
            # the array, but slices never go beyond the rows that were requested.
            self._address = address
            self._rows = rows_at(address, self.all_rows, self._rows.shape[1])
        if suppressed := self.model.suppressed:
            self._rows[: self.batch.n_rows, suppressed] = _NEVER
        return self._rows

    def _timed(
        self, compute: Callable[[Any, Any], int], batch: Any, meanwhile: Callable[[], None] | None = None
    ) -> int:
        """Compute a batch; returns its logits' address. Raises Interrupted, or SpecdecError if llama.cpp fails."""
        allowed_s = self._patience.of(batch.n_tokens)
        with self._turn:
            before = perf_counter()
            if meanwhile is None:
                code, address = self.call(_computed, compute, self.handle, batch, allowed_s=allowed_s)
            else:
                code = self.call(compute, self.handle, batch)
                if not code and not self.interrupt.is_set():
                    then = perf_counter()
                    meanwhile()
                    before += perf_counter() - then  # that isn't this pass's time
                address = self.call(_get_logits, self.handle)
            seconds = perf_counter() - before
        self._patience.saw(batch.n_tokens, seconds)
        self.decode_s += seconds
        if code == 2 or (code and self.interrupt.is_set()):
            library.recent_errors.clear()  # an ended pass logs errors, which a later failure would show
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
        """Run an encoder over rows, (n, any). Returns the encoded rows, (n, width of the head's own rows)."""
        count, width = rows.shape
        # An encoder ignores positions, but llama.cpp requires the next ones.
        first = lib.llama_memory_seq_pos_max(lib.llama_get_memory(self.handle), 0) + 1
        struct = lib.llama_batch_init(count, width, 1)
        try:
            np.ctypeslib.as_array(struct.embd, (count, width))[:] = rows
            for i in range(count):
                struct.pos[i], struct.n_seq_id[i], struct.seq_id[i][0], struct.logits[i] = first + i, 1, 0, 1
            struct.n_tokens = count
            self._timed(lib.llama_encode, struct)
            encoded: NDArray[np.float32] = last_rows(self.handle, count, self.batch.rows.shape[1]).copy()
            return encoded
        finally:
            lib.llama_batch_free(struct)

    def close(self) -> None:
        if self.handle:
            self._address, self._rows = 0, self._rows[:0].copy()
            self._free(lib.llama_free, self.handle)
            self.batch.free()
            self.handle = None


def _computed(compute: Callable[[Any, Any], int], handle: Any, batch: Any) -> tuple[int, int]:
    """Compute a batch; returns llama.cpp's code and the logits' address."""
    code = compute(handle, batch)
    return code, _get_logits(handle)  # on a GPU, this call waits for the result
