"""How long forward passes take on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from specdec_cli.llama.context import LlamaContext


def pass_seconds(
    context: LlamaContext,
    text: Sequence[int],
    sizes: Sequence[int],
    needed: int,
    budget_s: float,
    needed_rounds: int = 1,
    rounds: int = 64,
) -> dict[int, float]:
    """Seconds of a pass over n tokens for each n of `sizes`, the most wanted first.

    The first `needed` sizes are timed `needed_rounds` times whatever it takes, the others as long as the budget lasts;
    then again from the first, at most so many rounds. Every row of logits is read, if the context has room for so
    many. text: what to read, repeated as need be; real text, for the sake of the experts that it wakes. The cache is
    empty before each pass and at the end.

    The shortest lap of each size counts, for other processes only ever add to it; and no pass is said to take longer
    than a larger one, for it could be filled up to that.
    """
    sizes = [size for size in sizes if size <= context.n_ctx]
    tokens = [text[i % len(text)] for i in range(max(sizes))]
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    context.rewind(0)
    context.decode(tokens[:1])  # the first pass also pays for pages and graphs
    deadline = perf_counter() + budget_s
    for turn in range(rounds):
        for place, size in enumerate(sizes):
            if perf_counter() < deadline or (turn < needed_rounds and place < needed):
                context.rewind(0)
                before = perf_counter()
                context.decode(tokens[:size], all_rows=size <= context.max_rows)
                laps[size].append(perf_counter() - before)
    context.rewind(0)
    found: dict[int, float] = {}
    least = float("inf")
    for size in sorted((size for size in sizes if laps[size]), reverse=True):
        least = min(least, *laps[size])
        found[size] = least
    return dict(sorted(found.items()))
