"""How long forward passes take on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.llama.context import Context

_FILL, _MOST_ROUNDS = 128, 64
_SLOW = 1 / 12
"""A pass over one token that takes so large a share of the budget is not repeated for precision."""


def pass_seconds(
    context: Context,
    text: Sequence[int],
    sizes: Sequence[int],
    needed: int,
    budget_s: float,
    needed_rounds: int = 1,
) -> dict[int, float]:
    """Seconds of a pass over n tokens for each n of `sizes`: the shortest of `pass_laps`, since other processes only
    add to it, and none longer than that of a larger pass, since it could be filled up to that. With a slow model
    each size is timed once, and no more tokens are in the cache than can be read within the budget.
    """
    single = single_pass_s(context, text[0])
    fill = min(len(text), _FILL, int(budget_s / single))
    settled, needed_rounds = (1, 1) if single > _SLOW * budget_s else (SETTLED, needed_rounds)
    laps = pass_laps(context, text, sizes, needed, budget_s, needed_rounds, fill, settled)
    sizes = sorted(laps)
    return {size: min(min(laps[larger]) for larger in sizes[i:]) for i, size in enumerate(sizes)}


def pass_laps(
    context: Context,
    text: Sequence[int],
    sizes: Sequence[int],
    needed: int,
    budget_s: float,
    needed_rounds: int = 1,
    fill: int = _FILL,
    settled: int = SETTLED,
) -> dict[int, list[float]]:
    """Seconds of each of several passes over n tokens, for each n of `sizes`: the important ones first, and 1.

    The first `needed` sizes are timed `needed_rounds` times whatever it takes, the others as long as the budget lasts;
    then again from the first. Every row of logits is read, if there is room. text: repeated as need be; real text,
    since it decides which experts are used. `fill` tokens of it are in the cache before each pass, where that can be
    rewound; at the end it is empty. A pass costs more after one of another size: of single tokens the last of `settled`
    is timed, as where nothing is drafted; others after a pass of another size, as where drafts are long and short.
    """
    sizes = [size for size in sizes if size <= context.n_ctx]
    fill = min(fill, context.n_ctx - max(sizes)) if context.rewinds else 0
    tokens = [text[i % len(text)] for i in range(fill + max(sizes))]
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    context.rewind(0)
    context.decode(tokens[: fill + 1])  # the first pass also pays for pages
    deadline = perf_counter() + budget_s
    for turn in range(_MOST_ROUNDS):
        for index, size in enumerate(sizes):
            if perf_counter() >= deadline and not (turn < needed_rounds and index < needed):
                continue
            # Of each size that is new to a server, its client asks some things first.
            for _ in range(settled if size == 1 else 1 + (context.passes.remote and turn == 0)):
                context.rewind(fill)
                before = perf_counter()
                context.decode(tokens[fill : fill + size], all_rows=size <= context.max_rows)
                lap = perf_counter() - before
            laps[size].append(lap)
    context.rewind(0)
    return {size: times for size, times in laps.items() if times}


def single_pass_s(context: Context, token: int) -> float:
    """Seconds of a pass over one token in an empty cache, which it leaves empty."""
    times = []
    for _ in range(2):  # the first pass of all also pays for pages
        context.rewind(0)
        before = perf_counter()
        context.decode((token,))
        times.append(perf_counter() - before)
    context.rewind(0)
    return max(min(times), 1e-9)
