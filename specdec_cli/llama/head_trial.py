"""The child of trial_load for heads: loads them and their target, and decodes some tokens with both. It is a script.

What neither header tells: whether the target's graph gives the rows that the heads read, and whether llama.cpp has a
graph for the heads. Where it has not, it ends the process.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def main(target: str, head: str) -> None:
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.llama import kernels
    from specdec_cli.llama.context import LlamaContext
    from specdec_cli.llama.head_context import HeadContext
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.llama.model import Model
    from specdec_cli.llama.placement import Placement

    with suppress(SpecdecError):  # which is the parent's to tell
        interrupt, place = Interrupt(), Placement(0)
        repacks = kernels.verdict().extra_buffers
        model = Model(Path(target), place, interrupt, heads=target == head, repacks=repacks)
        heads = model if target == head else Model(Path(head), place, interrupt, heads=True, repacks=repacks)
        context = LlamaContext.open(model, 256, 2, 1, interrupt)
        drafts = HeadContext(heads, context, 2, 1, interrupt, branches=2)
        context.decode((0, 0, 0))
        context.decode((0, 0), all_rows=True)
        drafts.begin((0, 0, 0, 0))
        drafts.decode((0, 0))
        drafts.begin_draft()
        drafts.decode((0,))
        if drafts.max_rows > 1:
            drafts.grow((0, 1), (-1, -1))
            drafts.keep(())


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # the folder of this file has names of other packages' modules
    from specdec_cli.llama.trial_child import limit

    limit(int(sys.argv[2]), int(sys.argv[3]))
    main(sys.argv[1], sys.argv[4])
    os._exit(0)
