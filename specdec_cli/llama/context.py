"""A text in one model's cache, and a tree at its end: append tokens, read logits, drop what should not stay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.branches import Branches
from specdec_cli.llama.cells import Cells
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import N_BATCH, Passes, Piece

_FIRST_PIECE, CPU_PIECE = 32, 128
"""Tokens of a long text that a CPU reads at once: a small piece first, to know how long it will take. Pieces of 128
cost 2 to 3 % more than the whole, and show progress."""

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: just the state that cannot be rewound


class LlamaContext:
    """A cache for up to `n_ctx` tokens, with one reused batch.

    max_rows: the most rows of logits that a pass may yield, of n_vocab floats each: 1 for a draft model, 1 + the draft
    length for a target. At most N_BATCH. branches: the most of a tree, for `grow`; at most max_rows. passes: those of
    a cache that is not its own alone; sequence: its part of that.
    Rows of logits are views into llama.cpp's own buffer, valid until the next decode.
    Raises SpecdecError if the cache does not fit in memory.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        branches: int = 1,
        passes: Passes | None = None,
        sequence: int = 0,
    ) -> None:
        # A tree's pass may be asked for the logits of what is read again, too, for the hidden rows that come with them.
        all_rows = min(2 * max_rows, N_BATCH) if branches > 1 else max_rows
        self.passes = passes or Passes(model, n_ctx, max_rows, threads, interrupt, branches, all_rows)
        self._owns_passes = passes is None
        self._handle, self._sequence = self.passes.handle, sequence
        self.threads = threads
        self.thread_log = [(0, threads)]
        """The threads that the text began with, then each change: the tokens in the cache before the pass that it came
        after, and the new threads.
        """
        self.on_read: Callable[[int, int], None] | None = None
        """Called while a long text is read: tokens read so far, and all."""
        self.n_ctx = min(n_ctx, self.passes.n_ctx)
        self.n_vocab = model.n_vocab
        self.max_rows = max_rows
        self.length = 0
        self.reuses = False
        """Whether `begin` may keep what is held of a text already."""
        self.tokens: list[int] = []
        """The text, `length` tokens; and the nodes of the tree at its end, by number."""
        self._grown: list[int] = []
        self.rewinds = model.rewinds
        """Whether the last tokens can be dropped at any time; else only where `checkpoint` says."""
        self.max_branches = branches if model.rewinds else 0
        most = self.passes.most_read or (N_BATCH if model.on_gpu else CPU_PIECE)
        self._first_piece, self._piece = self.passes.most_read or _FIRST_PIECE, most
        self._failed = False
        self.cells = Cells(self._handle, branches, sequence, self.passes.call)
        self.shifts = model.rewinds and passes is None and self.cells.can_move
        """Whether `forget` is possible: cells that several texts share cannot move for one of them."""
        self._snapshots: int = lib.llama_n_rs_seq(self._handle)  # 0: llama.cpp has none for this architecture
        self._last_pass = 0
        self._saved: tuple[int, ctypes.Array[ctypes.c_uint8]] | None = None
        self._branches = Branches(branches)
        self.hidden: HiddenRows | None = None
        """What is kept of each token's hidden rows, for heads that draft with them."""

    def begin(self, text: Sequence[int]) -> int:
        """Forget everything, or where `reuses` allows it all but the longest common beginning with `text`, of which at
        least the last token is left to read. Returns how many tokens are kept.
        """
        kept = 0
        if self._failed:  # a recurrent state may have been overwritten in part
            self.cells.clear()
            self.length, self.tokens, self._saved, self._failed = 0, [], None, False
        if self.reuses and self.rewinds:
            self.passes.lend(self, text)
        if self.reuses:
            limit = min(len(text) - 1, self.length)
            while kept < limit and self.tokens[kept] == text[kept]:
                kept += 1
            if kept < self.length and not self.rewinds:
                kept = 0
        self.rewind(kept)
        self.thread_log = [(0, self.threads)]
        return kept

    def common(self, text: Sequence[int]) -> int:
        """How many tokens of a text it begins with."""
        return sum(1 for _ in takewhile(bool, map(eq, self.tokens, text)))

    def copy(self, other: LlamaContext, length: int) -> None:
        """Take over the first tokens of another text in the same cache, in place of what was held."""
        self.rewind(0)
        self.cells.copy(other.cells, length)
        self.length, self.tokens = length, other.tokens[:length]

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """Raise ValueError if there is no room for `news` and `more` tokens; returns the news."""
        if self.length + len(news) + more > self.n_ctx:
            raise ValueError(f"its context of {self.n_ctx} tokens is full")
        return news

    def forget(self, first: int, count: int) -> None:
        """Drop `count` tokens from position `first` on; what follows moves up. Only where it `shifts`."""
        self.cells.forget(first, count)
        self.length -= count
        del self.tokens[first : first + count]

    def decode(self, tokens: Sequence[int], all_rows: bool = False, unread: int = 0) -> Logits:
        """Append `tokens`, in as many passes as it takes.

        Returns float32 (1, n_vocab), the row after the last token; with `all_rows`, (len(tokens) - unread, n_vocab),
        the rows after all but the first `unread`: at most max_rows, in one pass. Raises Interrupted, or SpecdecError
        if llama.cpp fails.
        """
        total = len(tokens)
        if not all_rows and total > self._piece:
            tokens = self._read_most(tokens)
        count, first = len(tokens), self.length
        if first + count > self.n_ctx:
            raise SpecdecError(f"the context of {self.n_ctx} tokens is full", "Give a larger one (-c).")
        rows = self._read(tokens, first, all_rows, unread)
        self.length = first + count
        self.tokens.extend(tokens)
        self._last_pass = count
        if count < total and self.on_read is not None:
            self.on_read(total, total)
        return rows

    def _read_most(self, tokens: Sequence[int]) -> Sequence[int]:
        """Read a long text but for its last piece, which is returned. The pieces depend on nothing but its length, for
        what is read in other passes rounds differently.
        """
        total, done, report = len(tokens), 0, self.on_read or (lambda done, total: None)
        report(0, total)
        while total - done > (piece := self._piece if done else self._first_piece):
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
        extra = self.hidden.ask(len(tokens), unread, all_rows=True) if self.hidden else 0
        self.passes.batch.fill_tree(tokens, layout, self.length, unread - extra)
        try:
            rows = self.passes.run()
        finally:
            self.passes.batch.clear_tree()
        self._grown.extend(tokens)
        if self.hidden is not None:
            self.hidden.take_nodes(len(tokens))
        return rows[extra : len(tokens) - unread + extra]

    def keep(self, path: Sequence[int], ahead: Sequence[int] = ()) -> None:
        """End the tree: its nodes on this path, from the text down, are text from now on; the others are dropped.

        ahead: nodes that follow in the text, and are read again: heads may go by their hidden rows before that.
        """
        branches = self._branches
        self.cells.keep(branches.sequence(path[-1]) if path else 0, branches.used, self.length, len(path))
        if self.hidden is not None:
            self.hidden.keep(self.length, (*path, *ahead))
        self.length += len(path)
        self.tokens.extend([self._grown[node] for node in path])
        self._grown.clear()
        if len(branches) > len(path):
            self._drop(self.length)
        branches.clear()

    def _drop(self, length: int) -> None:
        if not self.cells.drop(length):
            raise SpecdecError("llama.cpp refused to drop rejected tokens from its cache", "Run with --drafter none.")

    def _read(self, tokens: Sequence[int], first: int, all_rows: bool, unread: int = 0) -> Logits:
        """One pass. Returns the last token's row, or all but the first `unread`."""
        self._failed = not self.rewinds
        extra = self.hidden.ask(len(tokens), unread, all_rows) if self.hidden else 0
        rows = self.passes.read(Piece(self._sequence, tokens, first, all_rows, unread - extra, self.hidden))
        self._failed = False
        return rows[extra : extra + (len(tokens) - unread if all_rows else 1)]

    def set_threads(self, threads: int) -> None:
        self.threads = threads
        self.thread_log.append((self.length, threads))
        self.passes.use_threads(threads)

    def checkpoint(self) -> None:
        """Make what follows the present length something that `rewind` can drop. Free where the cache can do that; with
        snapshots, which contexts of several rows have, a part of the very next pass can be, once.
        """
        if self.rewinds or self._snapshots:
            return
        size = lib.llama_state_seq_get_size_ext(self._handle, self._sequence, _PARTIAL)
        state = self._saved[1] if self._saved and len(self._saved[1]) == size else (ctypes.c_uint8 * size)()
        arguments = self._handle, state, size, self._sequence, _PARTIAL
        if self.passes.call(lib.llama_state_seq_get_data_ext, *arguments) != size:
            raise SpecdecError("llama.cpp cannot save this model's state", "Run it alone: --drafter none.")
        self._saved = (self.length, state)

    def begin_draft(self) -> None:
        """What follows can be dropped by `end_draft`."""
        self.checkpoint()

    def end_draft(self, length: int) -> None:
        """Drop what was drafted from position `length` on."""
        self.rewind(length)

    def rewind(self, length: int) -> None:
        """Drop every token from position `length` on. A recurrent or hybrid model cannot forget: its state is taken
        from the last pass's snapshots, or restored from the checkpoint, and what follows is decoded again. Raises
        SpecdecError rather than leave a wrong state.
        """
        if len(self._branches):  # a failure left a tree
            self.keep(())
        if length >= self.length:
            return
        if self.hidden is not None:
            self.hidden.cut(length)
        if length == 0:
            self.cells.clear()
            self.thread_log = [(0, self.threads)]
            self._saved = None
        # llama.cpp does not check whether the last pass left a state for `length`: it would take a stale one.
        elif self.rewinds or self.length - length <= min(self._snapshots, self._last_pass - 1):
            self._last_pass = 0
            self._drop(length)
        else:
            self._restore(length)
            return
        self.length = length
        del self.tokens[length:]

    def _restore(self, length: int) -> None:
        if self._saved is None or self._saved[0] > length:
            raise SpecdecError("this model cannot go back so far", "Run it alone: --drafter none.")
        saved, state = self._saved
        arguments = self._handle, state, len(state), self._sequence, _PARTIAL
        restored = self.passes.call(lib.llama_state_seq_set_data_ext, *arguments)
        if restored != len(state) or not self.cells.drop(saved):
            raise SpecdecError("llama.cpp cannot restore this model's state", "Run it alone: --drafter none.")
        again = self.tokens[saved:length]
        self.length = saved
        del self.tokens[saved:]
        if again:
            self.decode(again, all_rows=self.hidden is not None and len(again) <= self.max_rows)

    def close(self) -> None:
        """Free the cache and the batch, if they are its own."""
        if self._owns_passes:
            self.passes.close()
