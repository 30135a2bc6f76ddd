"""A context for whatever heads a file holds."""

from __future__ import annotations

from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.head_context import Eagle3Context, HeadContext
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model


def head_context(
    heads: Model,
    model: Model,
    n_ctx: int,
    rows: int,
    threads: int,
    interrupt: Interrupt,
    target: LlamaContext,
    branches: int = 1,
) -> HeadContext:
    """A context of heads for `target`, a context of `model`, which keeps the rows that they go by from now on."""
    made = Eagle3Context if lib.llama_model_has_encoder(heads.handle) else HeadContext
    target.hidden = HiddenRows(target.passes.handle, *made.rows_of(model, heads))
    return made(heads, n_ctx, rows, threads, interrupt, target, target.hidden, branches)
