"""Measures forward passes on this machine: how long they take, and which sizes give the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import numpy as np

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.context import Context

_FILL, _MAX_ROUNDS = 128, 64
_SLOW = 1 / 12
"""If a pass over one token takes this share of the budget, it isn't repeated for precision."""

_CONTEXTS = (96, 320)
"""Tokens in the cache when passes are compared: few, and more than 256, beyond which attention may be split."""
_SPLIT = 256
_WIDEST = 17
"""Tokens of the widest pass that is compared; longer drafts are read in several passes."""
_MISSES = 2
"""After this many sizes in a row that differ, no larger one is tried."""


def pass_seconds(
    context: Context,
    text: Sequence[int],
    sizes: Sequence[int],
    needed: int,
    budget_s: float,
    needed_rounds: int = 1,
    repeated: bool = False,
) -> dict[int, float]:
    """Seconds of a pass over n tokens for each n of `sizes`: the shortest of `pass_laps`, because other processes only
    add to it, and no longer than a larger pass, because a pass could be padded. With a slow model, each size is timed
    once, and the cache holds no more tokens than can be read within the budget. No trial of other threads starts.
    """
    callback, context.passes.on_pass = context.passes.on_pass, None
    try:
        single = single_pass_s(context, text[0])
        fill = min(len(text), _FILL, int(budget_s / single))
        slow = single > _SLOW * budget_s and not repeated
        settled, needed_rounds = (1, 1) if slow else (SETTLED, needed_rounds)
        laps = pass_laps(context, text, sizes, needed, budget_s, needed_rounds, fill, settled, repeated)
    finally:
        context.passes.on_pass = callback
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
    repeated: bool = False,
) -> dict[int, list[float]]:
    """Seconds of each of several passes over n tokens, for each n of `sizes`: the important ones first, including 1.

    The first `needed` sizes are timed `needed_rounds` times, however long it takes, the others while the budget lasts;
    then all again. Every row of logits is read, if there is room. text: repeated as needed; real text, because it
    decides which experts are used. `fill` tokens of it are in the cache before each pass, if the cache can be rewound;
    it is empty at the end. A pass costs more after one of another size. So for single tokens the last of `settled`
    passes is timed, as when nothing is drafted, and other sizes after a pass of another size, as when drafts vary, or
    if they are `repeated`, like single tokens.
    """
    sizes = [size for size in sizes if size <= context.n_ctx]
    fill = min(fill, context.n_ctx - max(sizes)) if context.rewinds else 0
    tokens = [text[i % len(text)] for i in range(fill + max(sizes))]
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    model = context.passes.model
    context.rewind(0)
    context.decode(tokens[: fill + 1])  # the first pass also has to load memory pages
    # The first pass of a size may have to load a GPU's kernels, or needs extra requests to a server.
    for size in sizes if model.on_gpu or model.remote else ():
        context.rewind(fill)
        context.decode(tokens[fill : fill + size], all_rows=size <= context.max_rows)
    deadline = perf_counter() + budget_s
    for turn in range(_MAX_ROUNDS):
        for index, size in enumerate(sizes):
            if perf_counter() >= deadline and not (turn < needed_rounds and index < needed):
                continue
            for _ in range(settled if size == 1 or repeated else 1):
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
    for _ in range(2):  # the very first pass also has to load memory pages
        context.rewind(0)
        before = perf_counter()
        context.decode((token,))
        times.append(perf_counter() - before)
    context.rewind(0)
    return max(min(times), 1e-9)


def contexts_of(n_ctx: int) -> tuple[int, ...]:
    """Tokens in the cache when passes are compared in a context of `n_ctx`."""
    room = max(n_ctx - _WIDEST - 2, 0)
    short, long = (min(fill, room) for fill in _CONTEXTS)
    return (short, long) if n_ctx > _SPLIT and long > short else (short,)


def measure_agreement(context: Context, text: Sequence[int]) -> Agreement:
    """Compare passes over 2 and more tokens with single-token passes, and with padded ones, bit for bit.

    text: what to read, repeated as needed. It compares all rows of a pass and the row of the token after it, which
    depends on the keys and values that the pass wrote. At the end the cache is empty.
    """
    most = min(context.max_rows, context.n_ctx - 2, _WIDEST)
    contexts = contexts_of(context.n_ctx)
    if most < 2:
        return Agreement(1, 1, context.threads, contexts, {})
    tokens = [text[i % len(text)] for i in range(max(contexts) + most + 2)]
    rows = partial(_rows_of, context, tokens)
    results: dict[int, tuple[list[int], dict[int, float]]] = {}
    for reference in (1, 2):
        sizes, off = list(range(2, most + 1)), dict[int, float]()
        for fill in contexts:
            expected = rows(fill, most + 1, 1, reference - 1)
            if reference == 2 and (distance := _distance(rows(fill, min(4, most + 1), 1, 0), expected[:4])):
                off[1] = distance
            agreeing: list[int] = []
            missed = 0
            for size in sizes:
                distance = _distance(rows(fill, size + 1, size, reference - 1), expected[: size + 1])
                if not distance:
                    agreeing.append(size)
                missed = missed + 1 if distance else 0
                if distance:
                    off[size] = max(off.get(size, 0.0), distance)
                if missed == _MISSES:
                    break
            sizes = agreeing
        results[reference] = sizes, off
        if 2 in sizes:
            break
    context.rewind(0)
    reference = 2 if 2 in results and {2, 3} <= set(results[2][0]) else 1
    sizes, off = results[reference]
    widest = next(size for size in range(reference, most + 1) if size + 1 not in sizes)
    return Agreement(reference, widest, context.threads, contexts, off)


def _distance(rows: Logits, expected: Logits) -> float:
    """The largest difference between two logits; 0 only if all bits are the same."""
    return 0.0 if np.array_equal(rows, expected) else max(float(np.abs(rows - expected).max()), 1e-30)


def _rows_of(context: Context, tokens: Sequence[int], fill: int, count: int, size: int, padding: int) -> Logits:
    """(count, n_vocab): the rows of a pass over `size` tokens after `fill` others, then of padded single tokens."""
    if context.length < fill:
        context.rewind(0)
        context.decode(tokens[:fill])
    context.rewind(fill)
    rows: list[Logits] = []
    while len(rows) < count:
        start, taken = fill + len(rows), 1 if rows else size
        unread = [tokens[start]] * (padding if taken == 1 else 0)
        result = context.decode([*tokens[start : start + taken], *unread], all_rows=True)
        rows += [row.copy() for row in result[:taken]]
        context.rewind(start + taken)
    return np.stack(rows)
