"""One KV cache for several texts: a pass can read from many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import N_BATCH, Chunk, Passes

_MIN_CHUNK = 64
MAX_TEXTS = (N_BATCH - _MIN_CHUNK) // 2
"""The most texts that a pass has room for if each has at least one draft token."""
_CPU_READS = 256
"""Tokens of prompts that a CPU reads in a pass. With 128, eight clients with long prompts get 0.95 of the tokens per
second with SmolLM2 on two cores, and with 512, 0.98."""
_CPU_MIXED = 63
"""From 64 rows on, llama.cpp's attention on a CPU skips other texts' cells only where all rows of a tile do
(GGML_FA_TILE_Q), so reading prompts and continuing answers in one pass takes up to a quarter longer than in two."""


def most_rows(rows: int, texts: int) -> int:
    """How many rows of `rows` each of `texts` texts may get from a pass."""
    return min(rows, (N_BATCH - _MIN_CHUNK) // texts)


class SharedContext:
    """`texts` of up to n_ctx tokens each that share passes; other arguments as in `LlamaContext.open`.

    interrupt: ends the passes of all texts. interrupts: one for each text, which ends the reading of that one only.
    snapshots: as for `Passes`.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        interrupts: Sequence[Interrupt],
        snapshots: bool = True,
    ) -> None:
        self.n_ctx, count = n_ctx, len(interrupts)
        max_rows = most_rows(max_rows, count)
        self.passes = Passes(model, count * n_ctx, max_rows, threads, interrupt, texts=count, snapshots=snapshots)
        # A pass has room for this many tokens of prompts, whatever the other texts need.
        most_read = min(N_BATCH - count * max_rows, N_BATCH if model.on_gpu else _CPU_READS)
        self.passes.most_read = self.most_read = most_read
        self.most_mixed = N_BATCH if model.on_gpu or model.remote else _CPU_MIXED
        """The most tokens of a pass that reads prompts and continues answers."""
        self._interrupts = interrupts
        self.texts: list[LlamaContext] = []
        for sequence in range(count):
            text = LlamaContext(self.passes, sequence, self.texts)
            text.n_ctx, text.read = n_ctx, self.read
            self.texts.append(text)
        self.ask: Callable[[SharedContext, Chunk], Logits] = lambda shared, chunk: shared.read_together([chunk])[0]
        """A text calls this to have a chunk read; by default, it is read at once."""

    def is_long(self, chunk: Chunk) -> bool:
        """Whether it belongs to a prompt: drafts are shorter."""
        return not chunk.all_rows and len(chunk.tokens) > self.passes.max_rows

    def read(self, chunk: Chunk) -> Logits:
        """Read a chunk of one text, together with those that other texts ask for meanwhile."""
        if self._interrupts[chunk.sequence].is_set():
            raise Interrupted
        return self.ask(self, chunk)

    def read_together(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """Run one pass over chunks of different texts, at most N_BATCH tokens. Returns the rows of each."""
        self.passes.batch.fill_texts(chunks)
        rows, found, row, token = self.passes.run(), [], 0, 0
        for chunk in chunks:
            count = len(chunk.tokens)
            start, row = row, row + (count - chunk.unread if chunk.all_rows else 1)
            found.append(rows[start:row])
            if chunk.hidden is not None:
                chunk.hidden.take(chunk.first, count, token)
            token += count
        return found

    def close(self) -> None:
        self.passes.close()
