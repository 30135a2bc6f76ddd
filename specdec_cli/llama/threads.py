"""Fewer CPU threads where those there are wait for each other: on a busy machine, two may be slower than one by far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from specdec_cli.llama.context import LlamaContext

_LARGEST = 32
"""Tokens of the passes that are looked at: waiting shows in small ones."""
_RECENT = 6
_SLOW, _MANY = 4.0, 3
"""A pass is slow if it takes so many times as long as it can; so many slow ones of the recent are no accident."""
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
