"""A text in one model's KV cache, and a tree at its end: append tokens, read logits, drop rejected tokens."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import DraftModel, Logits
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.kv_cache import KVCache
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import Chunk, Passes
from specdec_cli.user_files import cannot_write, checksum, replacement, try_out

_FIRST_CHUNK = 32
"""Tokens of a long text that are read first, to estimate how long the rest will take."""


class Context(DraftModel, Protocol):
    """What a session holds for any model: a language model, next-token layers, or Medusa heads."""

    passes: Passes

    @property
    def threads(self) -> int: ...

    def set_threads(self, threads: int) -> None: ...

    def close(self) -> None: ...


class LlamaContext:
    """A text in a KV cache, with the passes that fill it. texts: all that share the cache, if they do. sequence: this
    text's among them.

    Rows of logits are views into llama.cpp's own buffer, valid until the next decode.
    """

    def __init__(self, passes: Passes, sequence: int = 0, texts: Sequence[LlamaContext] | None = None) -> None:
        self.passes, self._sequence, self._texts = passes, sequence, texts
        self.cache = KVCache(passes, sequence)
        self.read: Callable[[Chunk], Logits] = passes.read
        """Runs a pass over a chunk of the text."""
        self.hidden: HiddenRows | None = None
        """The hidden rows of the tokens, if heads draft with them."""
        self.n_ctx, self.n_vocab = passes.n_ctx, passes.n_vocab
        self.max_rows, self._most_read, self.rewinds = passes.max_rows, passes.most_read, passes.rewinds
        self.max_branches = passes.branches if passes.rewinds else 0
        self.shifts = passes.rewinds and texts is None and self.cache.can_move
        """Whether `forget` is possible: cells that several texts share can't move for one of them."""
        self.thread_log = [(0, self.threads)]
        """The threads that the text began with, then each change: the tokens in the cache before the last pass with the
        old threads, and the new threads.
        """
        self.on_read: Callable[[int, int], None] | None = None
        """Called while a long text is read, with the tokens read so far and their total."""
        self.length = 0
        self.reuses = False
        """Whether `begin` may keep the beginning of the previous text."""
        self.singly = False
        """Whether two tokens of which only the last row is needed are read one by one."""
        self.tokens: list[int] = []
        """The tokens of the text; `_grown` has those of the tree at its end, by node number."""
        self._grown: list[int] = []
        self._failed = False

    @classmethod
    def open(
        cls, model: Model, n_ctx: int, max_rows: int, threads: int, interrupt: Interrupt, branches: int = 1
    ) -> LlamaContext:
        """Open a context with its own cache, for up to `n_ctx` tokens.

        max_rows: the most rows of logits that a pass may yield, n_vocab floats each: 1 for a draft model, 1 + the draft
        length for a target; at most N_BATCH. branches: the most branches of a tree, for `grow`; at most max_rows.
        Raises SpecdecError if the cache doesn't fit in memory.
        """
        return cls(Passes(model, n_ctx, max_rows, threads, interrupt, branches))

    @property
    def threads(self) -> int:
        return self.passes.threads

    def begin(self, text: Sequence[int]) -> int:
        """Forget everything or, if `reuses` is set, everything after the longest common prefix with `text`, of which at
        least the last token is left to read. A recurrent state that can't go back there goes back to its checkpoint, or
        is forgotten. Returns how many tokens are kept.
        """
        kept = 0
        self.settle()
        if self.reuses:
            if self._texts:
                self.cache.last_pass = 0  # other texts' passes may have moved its snapshots
            kept = self._reusable(text)
            if self._texts and self.rewinds:
                best = max(self._texts, key=lambda other: other._reusable(text))
                if (more := best._reusable(text)) > kept:
                    self.rewind(0)
                    self.cache.copy(best.cache, more)
                    if self.hidden and best.hidden:
                        self.hidden.copy(best.hidden, more)
                    self.length, self.tokens, kept = more, best.tokens[:more], more
        self.rewind(kept)
        self.thread_log = [(0, self.threads)]
        return kept

    def unread(self, text: Sequence[int]) -> int:
        """How many tokens of a text `begin` would leave to read."""
        if not self.reuses or self._failed:
            return len(text)
        texts = self._texts if self._texts and self.rewinds else (self,)
        return len(text) - max(other._reusable(text) for other in texts)

    def _reusable(self, text: Sequence[int]) -> int:
        """How many tokens of another text needn't be read, because this one's cache holds them."""
        return self.cache.reachable(self.length, min(self.common(text), max(len(text) - 1, 0)))

    def settle(self) -> None:
        """Forget what isn't part of the text: a tree at its end, cells of a pass that Ctrl-C ended, and all of a
        recurrent state that such a pass may have overwritten in part.
        """
        if self._failed:
            self.cache.clear()
            self.length, self.tokens, self._failed = 0, [], False
        self.rewind(self.length)
        if self.rewinds and self.cache.length > self.length:
            self.cache.drop(self.length)

    def common(self, text: Sequence[int]) -> int:
        """How many tokens of a text it shares from the start."""
        equal, most = 0, min(len(self.tokens), len(text))
        while equal < most:
            middle = (equal + most + 1) // 2
            if self.tokens[equal:middle] == [*text[equal:middle]]:
                equal = middle
            else:
                most = middle - 1
        return equal

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """Raise ValueError if there is no room for `news` and `more` tokens; returns the news."""
        if self.length + len(news) + more > self.n_ctx:
            raise ValueError(f"its context of {self.n_ctx} tokens is full")
        return news

    def forget(self, first: int, count: int) -> None:
        """Drop `count` tokens from position `first` on; later ones move up. Only if `shifts` is set."""
        self.cache.forget(first, count)
        self.length -= count
        del self.tokens[first : first + count]

    def decode(
        self,
        tokens: Sequence[int],
        all_rows: bool = False,
        unread: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Logits:
        """Append `tokens`, in as many passes as needed. meanwhile: called once the last one has begun.

        Returns float32 (1, n_vocab), the row after the last token; with `all_rows`, (len(tokens) - unread, n_vocab),
        the rows after all but the first `unread` tokens: at most max_rows, in one pass. Raises Interrupted, or
        SpecdecError if llama.cpp fails.
        """
        if self.singly and len(tokens) == 2 and not all_rows:
            self.decode(tokens[:1])
            tokens = tokens[1:]
        total = len(tokens)
        if not all_rows and total > self._most_read:
            tokens = self._read_most(tokens)
        count, first = len(tokens), self.length
        if first + count > self.n_ctx:
            raise SpecdecError(f"the context of {self.n_ctx} tokens is full", "Give a larger one (-c).")
        self._failed = not self.rewinds
        extra = self.hidden.ask(count, unread, all_rows) if self.hidden else 0
        rows = self.read(Chunk(self._sequence, tokens, first, all_rows, unread - extra, self.hidden, meanwhile))
        self._failed = False
        self.length = first + count
        self.tokens.extend(tokens)
        self.cache.last_pass = count
        if count < total and self.on_read is not None:
            self.on_read(total, total)
        return rows[extra : extra + (count - unread if all_rows else 1)]

    def _read_most(self, tokens: Sequence[int]) -> Sequence[int]:
        """Read a long text except its last chunk, which is returned. The chunks depend only on its length, because
        other passes would round differently.
        """
        total, done, report = len(tokens), 0, self.on_read or (lambda done, total: None)
        report(0, total)
        most = self._most_read
        first = most if self._texts else min(_FIRST_CHUNK, most)
        while total - done > (chunk := most if done else first):
            self.decode(tokens[done : done + chunk])
            done += chunk
            report(done, total)
        return tokens[done:]

    def grow(self, tokens: Sequence[int], parents: Sequence[int], unread: int = 0) -> Logits:
        """Append nodes to a tree at the end of the text, in one pass that yields at most max_rows rows.

        parents: for each, the number of the node that it follows, counted from the tree's start, or -1 for the text.
        unread: how many of the first tokens get no row. Returns (len(tokens) - unread, n_vocab). Afterwards, only
        `grow` and `keep` may be called. Raises SpecdecError if llama.cpp fails, or the model's memory is recurrent.
        """
        if not self.rewinds:
            raise SpecdecError("this model cannot verify a tree: its memory is recurrent", "Draft chains: --tree 1.")
        if self.length + len(self.cache.branches) + len(tokens) > self.n_ctx:
            raise SpecdecError(f"the context of {self.n_ctx} tokens is full", "Give a larger one (-c).")
        layout = self.cache.grow(parents, self.length)
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
        """End the tree: append its nodes on this path to the text, and drop the others.

        ahead: nodes that follow in the text and will be read again; heads may need their hidden rows before that.
        """
        if self.hidden is not None:
            self.hidden.keep(self.length, (*path, *ahead))
        kept = [self._grown[node] for node in path]
        self._grown.clear()
        first, self.length = self.length, self.length + len(path)
        self.tokens.extend(kept)
        self.cache.keep(path, first)

    def begin_draft(self) -> None:
        """Begin a draft, which `end_draft` can drop whatever the model's memory is."""
        self.cache.checkpoint(self.length)

    def end_draft(self, length: int) -> None:
        """Drop the draft from position `length` on."""
        self.rewind(length)

    def rewind(self, length: int) -> None:
        """Drop every token from position `length` on. The state of a recurrent or hybrid model comes from the last
        pass's snapshots, or from the checkpoint where a draft began, after which tokens are decoded again. Raises
        SpecdecError rather than leave a wrong state.
        """
        if len(self.cache.branches):  # an earlier failure left a tree
            self.keep(())
        if length >= self.length:
            return
        if self.hidden is not None:
            self.hidden.cut(length)
        if length == 0:
            self.cache.clear()
            self.thread_log = [(0, self.threads)]
        elif self.cache.can_drop(self.length - length):
            self.cache.drop(length)
        else:
            self._restore(length)
            return
        self.length = length
        del self.tokens[length:]

    def _restore(self, length: int) -> None:
        saved = self.cache.restore(length)
        again = self.tokens[saved:length]
        self.length = saved
        del self.tokens[saved:]
        if again:
            self.decode(again, all_rows=self.hidden is not None and len(again) <= self.max_rows)

    def set_threads(self, threads: int) -> None:
        self.thread_log.append((self.length, threads))
        self.passes.set_threads(threads)

    def save(self, path: Path) -> str:
        """Save the text's cache to a file: tens or hundreds of kilobytes per token. Returns the file's checksum.
        Raises SpecdecError if it can't be written.
        """
        self.settle()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try_out(path)
            with replacement(path) as new:
                size = self.cache.save(new, self.tokens)
                if not size or size != new.stat().st_size:  # llama.cpp doesn't notice if the disk is full at the end
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return checksum(new)
        except OSError as error:
            raise cannot_write(path, error) from None

    def load(self, path: Path, expected: str) -> bool:
        """Load a cache that a context of the same model saved. expected: the file's checksum. If the cache can't be
        used, the context is empty: False.
        """
        self.settle()
        self.rewind(0)
        try:
            tokens = self.cache.load(path, self.n_ctx) if checksum(path) == expected else []
        except OSError:
            tokens = []
        if not tokens:
            self.cache.clear()
            return False
        self.length, self.tokens[:] = len(tokens), tokens
        return True

    def close(self) -> None:
        """Free the cache, unless it is shared."""
        if self._texts is None:
            self.passes.close()
