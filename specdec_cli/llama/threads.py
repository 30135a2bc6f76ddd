"""Uses fewer CPU threads if they wait for each other: on a busy machine, two can be far slower than one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.pass_probes import single_pass_s

_LARGEST = 32
"""Tokens of the largest pass that counts: waiting shows in small ones."""
_RECENT, _SLOW, _MANY, _LOST_S = 6, 4.0, 3, 0.25
"""Of the last _RECENT passes, one is slow if it takes _SLOW times as long as it could. Threads wait for each other if
_MANY passes are slow and have lost _LOST_S seconds."""
_LONG_S, _FASTER = 0.08, 1.5
"""Without known times, passes over one token that take this long start a trial. Half the threads are kept if they are
_FASTER times as fast."""


class ThreadWatch:
    """Tries half of a context's threads when its passes take many times as long as they could, and keeps the faster.

    expected: seconds of a pass over n tokens at the start of a text, if known; otherwise the shortest so far counts.
    tell: called with the new number of threads, and how many times as long passes took before.
    """

    def __init__(self, context: LlamaContext, expected: Mapping[int, float], tell: Callable[[int, float], None]):
        self._context, self._tell, self._known = context, tell, dict(expected)
        self._least: dict[tuple[int, int], float] = {}
        """The shortest pass, by its tokens and the length of the text (in powers of two)."""
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._before: tuple[int, float, float] | None = None
        """During a trial: the threads before, the mean seconds of a pass with them, and its ratio to the shortest."""
        self.on = True
        """Whether it may change the threads: another number of them may round differently."""
        self._asked = False
        """Whether fewer threads have been tried without knowing how fast passes can be."""
        context.passes.on_pass = self._passed

    def try_fewer(self, token: int) -> None:
        """For an empty, unused context: if a pass takes long, try whether half the threads are faster."""
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
            self._tell(threads // 2, laps[0] / laps[-1])
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
            took, can = (sum(column) for column in zip(*self._recent, strict=True))
            self._before = context.threads, took / len(self._recent), took / can
            self._recent.clear()
            context.set_threads(context.threads // 2)

    def _waits(self) -> bool:
        slow = [(took, can) for took, can in self._recent if took > _SLOW * can]
        return len(slow) >= _MANY and sum(took - can for took, can in slow) >= _LOST_S

    def _is_long(self, tokens: int) -> bool:
        """Whether passes take long, and it isn't known how fast they can be."""
        if self._known or self._asked or tokens > 1:
            return False
        return len(self._recent) >= _MANY and all(took > _LONG_S for took, _ in list(self._recent)[-_MANY:])

    def _judge(self, threads: int, took: float, times: float) -> None:
        """Keep fewer threads, or go back."""
        now = sum(seconds for seconds, _ in self._recent) / len(self._recent)
        self._before = None
        self._recent.clear()
        self._known.clear()  # the expected times no longer hold
        self._least.clear()
        if took > _FASTER * now:
            self._tell(self._context.threads, max(times, took / now))
        else:
            self._context.set_threads(threads)
