"""Slots, in which `specdec serve` and `specdec batch` answer several requests at once: their options and loading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_cli.cli import options as opt
from specdec_cli.cli.loading import context_of, loaded
from specdec_cli.cli.output import print_parts

if TYPE_CHECKING:
    from specdec_cli.server.request_answering import Answering

QUEUE = 64
"""Answers that may wait for a slot; in a batch, for each slot."""
_CONTEXT = 4096
"""Tokens of context of a slot without -c, or fewer if the model was trained on fewer."""
OPTIONS = tuple(name for name in opt.ALL if name not in ("tree", "lookahead", "bitwise"))
"""Slots share passes, which verify only chains, and round differently from passes of one answer."""
DEFAULTS = {
    "ctx": str(_CONTEXT),
    "max_tokens": "the rest of the slot's context",
    "accept": "coupled with --seed, else rejection",
}


@contextmanager
def open_slots(given: opt.Given, count: int, most_waiting: int) -> Iterator[Answering]:
    from specdec_cli.engine.scheduler import Scheduler
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.pairs.config_layers import merged
    from specdec_cli.server.request_answering import Answering
    from specdec_cli.weights.model_pair import check_pair

    settings = given.settings()
    pair = check_pair(settings)
    n_ctx, interrupt = context_of(settings, pair, _CONTEXT), Interrupt()
    found = merged(given.profile, given.flags)
    profile = None if found.overrides("target") else found.profile
    names = dict.fromkeys(filter(None, (profile, pair.target_path.stem, pair.target_path.name)))
    with ExitStack() as stack:
        with interrupt:
            engine = stack.enter_context(loaded(replace(settings, ctx=n_ctx), pair, interrupt))
        accept = given.chosen("accept")
        scheduler = stack.enter_context(Scheduler(engine.weights, count, n_ctx, most_waiting, interrupt, accept))
        for note in engine.notes:
            print_parts(f"note: {note}", stderr=True, style="dim", uncut=True)
        yield stack.enter_context(closing(Answering(scheduler, list(names), given.chosen("max_tokens"))))
