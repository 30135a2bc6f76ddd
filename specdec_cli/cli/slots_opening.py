"""What `specdec serve` and `specdec batch` begin with: a pair in memory, with its slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdec_cli.cli.options import Given

if TYPE_CHECKING:
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.scheduler import Scheduler

_CONTEXT = 4096
"""Tokens of context of a slot where -c does not say, or as many as the model was trained on."""


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """n_ctx: tokens of context of a slot. max_tokens: of an answer, if given. names: what requests may call the
    model by, its own first.
    """

    engine: Engine
    scheduler: Scheduler
    n_ctx: int
    max_tokens: int | None
    names: tuple[str, ...]


@contextmanager
def open_slots(given: Given, count: int, most_waiting: int) -> Iterator[OpenSlots]:
    """Load the pair that was asked for, for so many answers at a time."""
    from specdec_cli.cli.output import print_parts
    from specdec_cli.display.terminal import status_line
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.scheduler import Scheduler
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.pairs.config_layers import require_used, resolve

    settings = resolve(given.profile, given.flags)
    require_used(given.typed, [settings])
    pair = check_pair(settings)
    trained, path = pair.target.setting("context_length"), pair.target_path
    n_ctx = settings.ctx or min(_CONTEXT, trained if isinstance(trained, int) and trained else _CONTEXT)
    interrupt = Interrupt()
    with interrupt, status_line(f"loading {path.name}", silent=False) as say:
        engine = Engine(replace(settings, ctx=n_ctx), interrupt, pair=pair)
        engine.read_corpus(say)
    with engine, Scheduler(engine, count, n_ctx, most_waiting) as scheduler:
        for note in engine.notes:
            print_parts(f"note: {note}", stderr=True, style="dim")
        names = dict.fromkeys([*([given.profile] if given.profile else []), path.stem, path.name])
        yield OpenSlots(engine, scheduler, n_ctx, given.flags["max_tokens"], tuple(names))
