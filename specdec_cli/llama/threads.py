"""Fewer CPU threads where those there are wait for each other: on a busy machine, two may be slower than one by far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter

from specdec_cli.llama.context import LlamaContext

_LARGEST = 32
"""Tokens of the passes that are looked at: waiting shows in small ones."""
_RECENT = 6
_SLOW, _MANY = 4.0, 3
"""A pass is slow if it takes so many times as long as it can; so many slow ones of the recent are no accident."""
_LONG_S, _FASTER = 0.08, 1.5
"""A pass over one token that takes less is not worth a question; half the threads must be so many times as fast."""
_LOST_S = 0.25
"""Seconds that they must have lost, or nobody would notice."""


class ThreadWatch:
    """Halves a context's threads when its passes take many times as long as they can, and says so once.

    expected: seconds of a pass over n tokens, as far as they are known; else the shortest so far counts. tell: is told
    the new number of threads, and how many times as long passes took.
    """

    def __init__(
        self, context: LlamaContext, expected: Mapping[int, float], tell: Callable[[int, float], None]
    ) -> None:
        self._context, self._tell = context, tell
        self._least = dict(expected)
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        context.on_pass = self._passed

    def try_fewer(self, token: int) -> None:
        """Before anything is known of a context, which must be empty: where a pass takes long, see whether half the
        threads are faster.
        """
        context, threads = self._context, self._context.threads
        if threads == 1 or self._least:
            return
        laps: list[float] = []
        for count in (threads, threads // 2):
            context.set_threads(count)
            times = []
            for _ in range(2):  # the first also pays for pages
                before = perf_counter()
                context.decode((token,))
                times.append(perf_counter() - before)
                context.rewind(0)
            laps.append(min(times))
            if laps[0] < _LONG_S:
                break
        self._recent.clear()
        self._least.clear()
        if len(laps) == 2 and laps[0] > _FASTER * laps[1]:
            self._tell(threads // 2, laps[0] / laps[1])
        else:
            context.set_threads(threads)

    def _passed(self, tokens: int, seconds: float) -> None:
        if tokens > _LARGEST or self._context.threads == 1:
            return
        least = self._least[tokens] = min(self._least.get(tokens, seconds), seconds)
        self._recent.append((seconds, least))
        slow = [(took, can) for took, can in self._recent if took > _SLOW * can]
        if len(slow) < _MANY or sum(took - can for took, can in slow) < _LOST_S:
            return
        times = sum(took for took, _ in slow) / sum(can for _, can in slow)
        self._least.clear()
        self._recent.clear()
        self._context.set_threads(self._context.threads // 2)
        self._tell(self._context.threads, times)
