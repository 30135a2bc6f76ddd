"""Finds out which numbers of tokens in a pass give the same bits on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.context import Context

_CONTEXTS = (96, 320)
"""Tokens in the cache where passes are compared: few, and more than the 256 from which attention may be split."""
_SPLIT = 256
_WIDEST = 17
"""Tokens of the widest pass that is compared; longer drafts are read in several."""
_MISSES = 2
"""After so many widths in a row that differ no wider one is tried."""


def contexts_of(n_ctx: int) -> tuple[int, ...]:
    """Tokens in the cache when passes are compared in a context of `n_ctx`."""
    room = max(n_ctx - _WIDEST - 2, 0)
    short, long = (min(fill, room) for fill in _CONTEXTS)
    return (short, long) if n_ctx > _SPLIT and long > short else (short,)


def measure(context: Context, text: Sequence[int], threads: int, watch: Callable[[], None]) -> Agreement:
    """Compare passes of 2 tokens and more with single-token passes, and with padded ones, bit for bit.

    text: what to read, repeated as need be. Compared are all rows of a pass, and the row of the token after it, which
    shows the keys and values that the pass wrote. `watch` is called after each pass. At the end the cache is empty.
    """
    most = min(context.max_rows, context.n_ctx - 2, _WIDEST)
    contexts = contexts_of(context.n_ctx)
    if most < 2:
        return Agreement(1, 1, threads, contexts, {})
    tokens = [text[i % len(text)] for i in range(max(contexts) + most + 2)]
    rows = partial(_rows, context, tokens, watch)
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
    return Agreement(reference, widest, threads, contexts, off)


def _distance(rows: Logits, expected: Logits) -> float:
    """The largest difference of two logits; 0 exactly where all bits are the same."""
    return 0.0 if np.array_equal(rows, expected) else max(float(np.abs(rows - expected).max()), 1e-30)


def _rows(
    context: Context,
    tokens: Sequence[int],
    watch: Callable[[], None],
    fill: int,
    count: int,
    size: int,
    padding: int,
) -> Logits:
    """(count, n_vocab): the rows of a pass of `size` tokens after `fill` ones, then of single tokens with `padding`."""
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
        watch()
    return np.stack(rows)
