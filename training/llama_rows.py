"""What llama.cpp computes, for comparing: rows of logits of a GGUF file, through specdec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specdec_cli.llama.context import N_BATCH, LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement


class Reader:
    """A model in llama.cpp that reads whole texts. One thread of the CPU, and the context that it was trained for."""

    def __init__(self, path: Path) -> None:
        interrupt = Interrupt()
        self.model = Model(path, Placement(0), interrupt)
        self._context = LlamaContext(self.model, self.model.n_ctx_train, N_BATCH, 1, interrupt)

    def rows(self, ids: Sequence[int]) -> np.ndarray:
        """Logits after each token of a text that begins with them, float32 (len(ids), n_vocab)."""
        self._context.rewind(0)
        found = [
            self._context.decode(ids[at : at + N_BATCH], all_rows=True).copy() for at in range(0, len(ids), N_BATCH)
        ]
        return np.concatenate(found)

    def close(self) -> None:
        self._context.close()
        self.model.close()
