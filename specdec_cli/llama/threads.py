"""Fewer CPU threads on a busy machine: two that wait for each other may be far slower than one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.pass_probes import single_pass_s

_LARGEST = 32
"""Tokens of the largest pass that counts: waiting shows in small passes."""
_RECENT, _SLOW, _MANY, _LOST_S = 6, 4.0, 3, 0.25
"""How many passes it looks at. A pass is slow if it takes _SLOW times as long as it can. Threads wait for each other if
_MANY passes are slow and have lost _LOST_S seconds together."""
_LONG_S, _FASTER = 0.08, 1.5
"""Without known times, a trial starts if passes over one token take _LONG_S. It keeps half the threads if they are
_FASTER times as fast."""


class ThreadWatch:
    """Tries half of a context's threads if its passes take many times as long as they can, and keeps the faster number.

    expected: seconds of a pass over n tokens at the start of a text, if known; otherwise the shortest so far counts.
    tell: called with the new number of threads.
    """

    def __init__(self, context: LlamaContext, expected: Mapping[int, float], tell: Callable[[int], None]):
        self._context, self._tell, self._known = context, tell, dict(expected)
        self._least: dict[tuple[int, int], float] = {}
        """The shortest pass by its tokens and by the length of the text, in doublings."""
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._before: tuple[int, float] | None = None
        """During a trial: the threads before, and the mean seconds of a pass with them."""
        self.on = True
        """Whether it may change the threads: another number rounds differently."""
        self._asked = False
        """Whether fewer threads have been tried without known times."""
        context.passes.on_pass = self._passed

    def try_fewer(self, token: int) -> None:
        """For an empty, unused context: if a pass takes long, check whether half the threads are faster."""
        context, threads = self._context, self._context.threads
        if not self.on or threads == 1 or self._known or self._asked:
            return
        self._asked = True
        watch, context.passes.on_pass = context.passes.on_pass, None
        laps: list[float] = []
        for count in (threads, threads // 2):
            context.set_threads(count)
            laps.append(single_pass_s(context, token))
            if laps[0] < _LONG_S:
                break
        context.passes.on_pass = watch
        if laps[0] > _FASTER * laps[-1]:
            self._tell(threads // 2)
        else:
            context.set_threads(threads)

    def _passed(self, tokens: int, seconds: float) -> None:
        if not self.on or tokens > _LARGEST:
            return
        context = self._context
        kind = (tokens, context.length.bit_length())
        known = self._known.get(tokens, seconds) if context.length < 512 else seconds
        least = self._least[kind] = min(self._least.get(kind, known), seconds)
        self._recent.append((seconds, least))
        if self._before is not None:
            if len(self._recent) >= _MANY:
                self._judge(*self._before)
        elif context.threads > 1 and (self._waits() or self._is_long(tokens)):
            self._asked = True
            self._before = context.threads, self._mean_s()
            self._recent.clear()
            context.set_threads(context.threads // 2)

    def _waits(self) -> bool:
        slow = [(took, can) for took, can in self._recent if took > _SLOW * can]
        return len(slow) >= _MANY and sum(took - can for took, can in slow) >= _LOST_S

    def _is_long(self, tokens: int) -> bool:
        """Whether passes take long, and no known times show that they could be shorter."""
        if self._known or self._asked or tokens > 1:
            return False
        return len(self._recent) >= _MANY and all(took > _LONG_S for took, _ in list(self._recent)[-_MANY:])

    def _mean_s(self) -> float:
        """Seconds of a recent pass."""
        return sum(seconds for seconds, _ in self._recent) / len(self._recent)

    def _judge(self, threads: int, took: float) -> None:
        """Keep fewer threads, or go back."""
        now = self._mean_s()
        self._before = None
        self._recent.clear()
        self._known.clear()  # the expected times are of other threads
        self._least.clear()
        if took > _FASTER * now:
            self._tell(self._context.threads)
        else:
            self._context.set_threads(threads)
