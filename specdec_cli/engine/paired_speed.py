"""How much faster an answer comes with drafts than without: parts of it are written again, by both in turn.

A single answer of each says little: the first one runs cold, and other programs slow either down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.engine.answer_bounds import AnswerBounds

if TYPE_CHECKING:
    from specdec_cli.engine.config import Settings
    from specdec_cli.engine.engine import Engine

_PARTS, _LEAST_TOKENS = 8, 12
"""Parts of an answer, and the fewest tokens of a part; of a shorter answer, the whole is written ROUNDS times."""
_ROUNDS = 5


def paired_speedup(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], seed: int, bounds: AnswerBounds, settings: Settings
) -> Interval | None:
    """The speed with drafts over that of the target alone. answer: the tokens that both go on from, part by part.

    Who begins changes from part to part. None if the answer is too short, or Ctrl-C came.
    """
    count = min(_PARTS, len(answer) // _LEAST_TOKENS)
    starts = [number * len(answer) // count for number in range(count)] if count >= 3 else [0] * _ROUNDS
    size = len(answer) // count if count >= 3 else len(answer)
    ways = [settings.alone(), settings]
    ratios = []
    with reusing(engine):
        for number, start in enumerate(starts):
            speeds: dict[str, float] = {}
            for way in ways if number % 2 else ways[::-1]:
                text = [*prompt, *answer[:start]]
                part = replace(bounds, written=start)
                metrics = Metrics.of(engine.events(text, seed, part, replace(way, max_tokens=size)))
                if metrics.reason == "interrupted":
                    return None
                speeds[way.drafter] = metrics.tokens_per_s or 0.0
            alone, drafted = speeds["none"], speeds[settings.drafter]
            if alone and drafted:
                ratios.append(drafted / alone)
    return geometric_interval(ratios)


@contextmanager
def reusing(engine: Engine) -> Iterator[None]:
    """Let the models go by what they have read of the text, which is all but the last part."""
    contexts = [loaded.context for loaded in engine.models.all if loaded.context]
    for context in contexts:
        context.reuses = True
    try:
        yield
    finally:
        for context in contexts:
            context.reuses = False
