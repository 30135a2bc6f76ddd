"""A text in one model's cache, and a tree at its end: append tokens, read logits, drop what should not stay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama import library
from specdec_cli.llama.batch import Batch
from specdec_cli.llama.branches import Branches
from specdec_cli.llama.cells import Cells
from specdec_cli.llama.interrupt import POLL, Interrupt
from specdec_cli.llama.model import Model

N_BATCH = 512
"""Tokens per llama_decode. llama.cpp computes in pieces of 512; more would only delay Ctrl-C on a GPU, whose passes
cannot be aborted."""

_FIRST_PIECE, _CPU_PIECE = 32, 128
"""Tokens of a long text that a CPU reads at once: a small piece first, to know how long it will take. Pieces of 128
cost 2 to 3 % more than the whole, and show progress."""

MAX_SNAPSHOTS = 8
"""The longest draft that a recurrent state is kept for at each token, since each costs a whole state. llama.cpp's
graph has no room for many: it aborts the process from 10 on for a Nemotron-H of 42 layers, from 22 on for an LFM2."""

MOST_SEQUENCES = 256
"""What llama.cpp is built for (LLAMA_MAX_SEQ); it aborts the process beyond."""

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: just the state that cannot be rewound

# The bindings' own declaration returns a pointer object; the plain address is what is compared from pass to pass.
_get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", lib._lib))


class LlamaContext:
    """A cache for up to `n_ctx` tokens, with one reused batch.

    max_rows: the most rows of logits that a pass may yield, of n_vocab floats each: 1 for a draft model, 1 + the draft
    length for a target. At most N_BATCH. branches: the most of a tree, for `grow`; at most max_rows.
    Rows of logits are views into llama.cpp's own buffer, valid until the next decode.
    Raises SpecdecError if the cache does not fit in memory.
    """

    def __init__(
        self, model: Model, n_ctx: int, max_rows: int, threads: int, interrupt: Interrupt, branches: int = 1
    ) -> None:
        self._handle = _opened(model, n_ctx, max_rows, threads, interrupt, branches)
        self.threads = threads
        self.thread_log = [(0, threads)]
        """The threads that the text began with, then each change: the tokens in the cache before the pass that it came
        after, and the new threads.
        """
        self.on_read: Callable[[int, int], None] | None = None
        """Called while a long text is read: tokens read so far, and all."""
        self.on_pass: Callable[[int, float], None] | None = None
        """Called after each pass: its tokens, and its seconds."""
        self.n_ctx: int = min(n_ctx, lib.llama_n_ctx(self._handle))  # llama.cpp rounds up to a multiple of 256
        self.n_vocab = model.n_vocab
        self.max_rows = max_rows
        self.length = 0
        self.reuses = False
        """Whether `begin` may keep what is held of a text already."""
        self.tokens: list[int] = []
        """The text, `length` tokens; and the nodes of the tree at its end, by number."""
        self._grown: list[int] = []
        self.decode_s = 0.0
        """Seconds spent in llama_decode since the context was made, waiting for the device included."""
        self.rewinds = model.rewinds
        """Whether the last tokens can be dropped at any time; else only where `checkpoint` says."""
        self.max_branches = branches if model.rewinds else 0
        self._piece = N_BATCH if model.on_gpu else _CPU_PIECE
        self._interrupt = interrupt
        self._failed = False
        self.cells = Cells(self._handle, branches)
        self._snapshots: int = lib.llama_n_rs_seq(self._handle)  # 0: llama.cpp has none for this architecture
        self._last_pass = 0
        self._saved: tuple[int, ctypes.Array[ctypes.c_uint8]] | None = None
        self._branches = Branches(branches)
        self._batch = Batch(N_BATCH, self.n_ctx, branches)
        self._address = 0
        self._rows: Logits = np.empty((0, model.n_vocab), np.float32)

    def begin(self, text: Sequence[int]) -> int:
        """Forget everything, or where `reuses` allows it all but the longest common beginning with `text`, of which at
        least the last token is left to read. Returns how many tokens are kept.
        """
        kept = 0
        if self._failed:  # a recurrent state may have been overwritten in part
            self.cells.clear()
            self.length, self.tokens, self._saved, self._failed = 0, [], None, False
        if self.reuses:
            limit = min(len(text) - 1, self.length)
            while kept < limit and self.tokens[kept] == text[kept]:
                kept += 1
            if kept < self.length and not self.rewinds:
                kept = 0
        self.rewind(kept)
        self.thread_log = [(0, self.threads)]
        return kept

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        """Append `tokens`, in as many passes as it takes.

        Returns float32 (1, n_vocab), the row after the last token; with `all_rows`, which at most max_rows
        tokens may ask for, (len(tokens), n_vocab). Raises Interrupted, or SpecdecError if llama.cpp fails.
        """
        total = len(tokens)
        if not all_rows and total > self._piece:
            tokens = self._read_most(tokens)
        count, first = len(tokens), self.length
        if first + count > self.n_ctx:
            raise SpecdecError(f"the context of {self.n_ctx} tokens is full", "Give a larger one (-c).")
        self._batch.fill(tokens, first, all_rows)
        self._pass()
        self.length = first + count
        self.tokens.extend(tokens)
        self._last_pass = count
        if count < total and self.on_read is not None:
            self.on_read(total, total)
        return self._rows[: count if all_rows else 1]

    def _read_most(self, tokens: Sequence[int]) -> Sequence[int]:
        """Read a long text but for its last piece, which is returned. The pieces depend on nothing but its length, for
        what is read in other passes rounds differently.
        """
        total, done, report = len(tokens), 0, self.on_read or (lambda done, total: None)
        report(0, total)
        while total - done > (piece := self._piece if done else _FIRST_PIECE):
            self.decode(tokens[done : done + piece])
            done += piece
            report(done, total)
        return tokens[done:]

    def grow(self, tokens: Sequence[int], parents: Sequence[int], unread: int = 0) -> Logits:
        """Append nodes to a tree at the end of the text, in one pass that yields at most max_rows rows.

        parents: of each, the number of the node that it follows, counted since the tree began, or -1 for the text.
        unread: so many of the first tokens get no row. Returns (len(tokens) - unread, n_vocab). After it, only `grow`
        and `keep` may be called. Raises SpecdecError if llama.cpp fails, or the model's memory is recurrent.
        """
        if not self.rewinds:
            raise SpecdecError("this model cannot check a tree: its memory is recurrent", "Draft chains: --tree 1.")
        if self.length + len(self._branches) + len(tokens) > self.n_ctx:
            raise SpecdecError(f"the context of {self.n_ctx} tokens is full", "Give a larger one (-c).")
        layout = self._branches.grow(parents)
        for source, goal, depth in layout.copies:
            self.cells.share(source, goal, self.length, depth)
        self._batch.fill_tree(tokens, layout, self.length, unread)
        try:
            self._pass()
        finally:
            self._batch.clear_tree()
        self._grown.extend(tokens)
        return self._rows[: len(tokens) - unread]

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: its nodes on this path, from the text down, are text from now on; the others are dropped."""
        branches = self._branches
        self.cells.keep(branches.sequence(path[-1]) if path else 0, branches.used, self.length, len(path))
        self.length += len(path)
        self.tokens.extend([self._grown[node] for node in path])
        self._grown.clear()
        if len(branches) > len(path):
            self._drop(self.length)
        branches.clear()

    def _drop(self, length: int) -> None:
        if not self.cells.drop(length):
            raise SpecdecError("llama.cpp refused to drop rejected tokens from its cache", "Run with --drafter none.")

    def _pass(self) -> None:
        before = perf_counter()
        code = lib.llama_decode(self._handle, self._batch.struct)
        address = _get_logits(self._handle)  # on a GPU this is what waits
        seconds = perf_counter() - before
        self.decode_s += seconds
        self._failed = bool(code) and not self.rewinds
        if code == 2 or (code and self._interrupt.is_set()):
            raise Interrupted
        if code:
            reason = library.last_error() or f"code {code}"
            raise SpecdecError(
                f"llama.cpp failed to decode: {reason}", "Try a smaller context (-c) or fewer GPU layers (-ngl)."
            )
        if address != self._address:
            # llama.cpp's buffer rarely moves, so it is not wrapped for every pass. It has grown to the most rows ever
            # asked for; slices of the array never go beyond that.
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._address, self._rows = address, np.ctypeslib.as_array(pointer, (self.max_rows, self.n_vocab))
        if self.on_pass is not None:
            self.on_pass(self._batch.struct.n_tokens, seconds)

    def set_threads(self, threads: int) -> None:
        self.threads = threads
        self.thread_log.append((self.length, threads))
        lib.llama_set_n_threads(self._handle, threads, threads)

    def checkpoint(self) -> None:
        """Make what follows the present length something that `rewind` can drop. Free where the cache can do that; with
        snapshots, which contexts of several rows have, a part of the very next pass can be, once.
        """
        if self.rewinds or self._snapshots:
            return
        size = lib.llama_state_seq_get_size_ext(self._handle, 0, _PARTIAL)
        state = self._saved[1] if self._saved and len(self._saved[1]) == size else (ctypes.c_uint8 * size)()
        if lib.llama_state_seq_get_data_ext(self._handle, state, size, 0, _PARTIAL) != size:
            raise SpecdecError("llama.cpp cannot save this model's state", "Run it alone: --drafter none.")
        self._saved = (self.length, state)

    def rewind(self, length: int) -> None:
        """Drop every token from position `length` on. A recurrent or hybrid model cannot forget: its state is taken
        from the last pass's snapshots, or restored from the checkpoint, and what follows is decoded again. Raises
        SpecdecError rather than leave a wrong state.
        """
        if len(self._branches):  # a failure left a tree
            self.keep(())
        if length >= self.length:
            return
        if length == 0:
            self.cells.clear()
            self.thread_log = [(0, self.threads)]
            self._saved = None
        elif self.rewinds or self._has_snapshot(length):
            self._last_pass = 0
            self._drop(length)
        else:
            self._restore(length)
            return
        self.length = length
        del self.tokens[length:]

    def _has_snapshot(self, length: int) -> bool:
        """Whether the last pass left a state for `length`. llama.cpp does not check: it would take a stale one."""
        return 0 < self.length - length <= min(self._snapshots, self._last_pass - 1)

    def _restore(self, length: int) -> None:
        if self._saved is None or self._saved[0] > length:
            raise SpecdecError("this model cannot go back so far", "Run it alone: --drafter none.")
        saved, state = self._saved
        restored = lib.llama_state_seq_set_data_ext(self._handle, state, len(state), 0, _PARTIAL)
        if restored != len(state) or not self.cells.drop(saved):
            raise SpecdecError("llama.cpp cannot restore this model's state", "Run it alone: --drafter none.")
        again = self.tokens[saved:length]
        self.length = saved
        del self.tokens[saved:]
        if again:
            self.decode(again)

    def close(self) -> None:
        """Free the cache and the batch."""
        if self._handle:
            self._address, self._rows = 0, self._rows[:0].copy()
            self._batch.free()
            lib.llama_free(self._handle)
            self._handle = None


def _opened(model: Model, n_ctx: int, max_rows: int, threads: int, interrupt: Interrupt, branches: int) -> Any:
    """llama.cpp's own context."""
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = N_BATCH
    params.n_threads = params.n_threads_batch = threads
    params.n_outputs_max = params.n_outputs_max_per_seq = max_rows
    params.n_seq_max, params.kv_unified = branches, branches > 1
    params.no_perf = True
    if not model.rewinds and max_rows - 1 <= MAX_SNAPSHOTS:
        params.n_rs_seq = max_rows - 1
    if POLL is not None:
        params.abort_callback = lib.ggml_abort_callback(POLL)
        params.abort_callback_data = interrupt.address
    library.recent_errors.clear()
    handle = lib.llama_init_from_model(model.handle, params)
    if interrupt.is_set():
        if handle:
            lib.llama_free(handle)
        raise Interrupted
    if not handle:
        reason = library.last_error() or "llama.cpp gave no reason"
        raise SpecdecError(
            f"no room for a context of {n_ctx} tokens of {model.path.name}: {reason}",
            "Give a smaller context (-c), or fewer GPU layers (-ngl).",
        )
    return handle
