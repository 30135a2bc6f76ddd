"""Fewer CPU threads while a machine is busy: two that wait for each other may be far slower than one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from statistics import median

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
_PATIENCE = 32
"""Passes of other sizes after which a trial ends without a result."""
_CALM, _REGAINED = 512, 1.2
"""After _CALM passes with fewer threads than at first, a trial of twice as many starts, and keeps them if they are
_REGAINED times as fast. After each failed trial, the next one waits twice as long."""


class ThreadTuner:
    """Tries half of a context's threads if its passes take many times as long as they can, and now and then twice as
    many after that. It keeps the faster number.

    expected: seconds of a pass over n tokens at the start of a text, if known; otherwise the shortest so far counts.
    tell: called with the new number of threads. most: threads of the model when nothing else runs.
    """

    def __init__(self, context: LlamaContext, expected: Mapping[int, float], tell: Callable[[int], None], most: int):
        self._context, self._tell, self._known, self._most = context, tell, dict(expected), most
        self._calm, self._wait = 0, _CALM
        """Passes since the last trial, and how many must pass before the next one of more threads."""
        self._least: dict[tuple[int, int], float] = {}
        """The shortest pass by its tokens and by the length of the text, in doublings."""
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=_RECENT)
        """The tokens of each pass, its seconds, and those of the shortest such pass."""
        self._before: tuple[int, dict[int, float]] | None = None
        """During a trial: the threads before, and the usual seconds of a pass with them, by its tokens."""
        self.on = True
        """Whether it may change the threads: another number rounds differently."""
        self._asked = False
        """Whether fewer threads have been tried without known times."""
        self._skipped = 0
        """Passes in a trial that say nothing, because such passes weren't timed before it."""
        context.passes.on_pass = self._passed

    def stop(self) -> None:
        """Keep the threads until `on` is set again."""
        self.on = False
        self._end_trial()

    def _end_trial(self) -> None:
        if self._before:
            self._context.set_threads(self._before[0])
            self._before = None

    def try_fewer(self, token: int) -> None:
        """For an empty, unused context: if a pass takes long, check whether half the threads are faster."""
        self._end_trial()
        context, threads = self._context, self._context.threads
        if not self.on or threads == 1 or self._known or self._asked:
            return
        self._asked = True
        callback, context.passes.on_pass = context.passes.on_pass, None
        laps, chosen = list[float](), threads
        try:
            for count in (threads, threads // 2):
                context.set_threads(count)
                laps.append(single_pass_s(context, token))
                if laps[0] < _LONG_S:
                    break
            if laps[0] > _FASTER * laps[-1]:
                chosen = threads // 2
        finally:
            context.passes.on_pass = callback
            context.set_threads(chosen)
        if chosen < threads:
            self._tell(chosen)

    def _passed(self, tokens: int, seconds: float) -> None:
        if not self.on or tokens > _LARGEST:
            return
        context = self._context
        if self._before and tokens not in self._before[1]:
            self._skipped += 1
            if self._skipped == _PATIENCE:
                self._end_trial()
            return
        kind = (tokens, context.length.bit_length())
        known = self._known.get(tokens, seconds) if context.length < 512 else seconds
        least = self._least[kind] = min(self._least.get(kind, known), seconds)
        self._recent.append((tokens, seconds, least))
        self._calm += 1
        if self._before is not None:
            if len(self._recent) >= _MANY or seconds > _SLOW * self._before[1][tokens]:
                self._judge(*self._before)
        elif context.threads > 1 and ((waits := self._waits()) or self._is_long()):
            usual = self._usual_s()
            self._begin_trial(context.threads // 2, usual if waits else {1: usual[1]})
        elif context.threads < self._most and self._calm >= self._wait:
            self._begin_trial(min(2 * context.threads, self._most), self._usual_s())

    def _begin_trial(self, threads: int, usual: dict[int, float]) -> None:
        self._asked, self._skipped, self._calm = True, 0, 0
        self._before = self._context.threads, usual
        self._recent.clear()
        self._context.set_threads(threads)

    def _waits(self) -> bool:
        slow = [(took, can) for _, took, can in self._recent if took > _SLOW * can]
        return len(slow) >= _MANY and sum(took - can for took, can in slow) >= _LOST_S

    def _is_long(self) -> bool:
        """Whether passes over one token take long, and no known times show that they could be shorter."""
        if self._known or self._asked:
            return False
        single = [took for tokens, took, _ in self._recent if tokens == 1]
        return len(single) >= _MANY and min(single) > _LONG_S

    def _usual_s(self) -> dict[int, float]:
        """Seconds of a recent pass, by its tokens."""
        laps: dict[int, list[float]] = defaultdict(list)
        for tokens, took, _ in self._recent:
            laps[tokens].append(took)
        return {tokens: median(times) for tokens, times in laps.items()}

    def _judge(self, threads: int, usual: Mapping[int, float]) -> None:
        """Keep the tried threads, or go back. usual: seconds of a pass over so many tokens with `threads`."""
        before = sum(usual[tokens] for tokens, _, _ in self._recent)
        now = sum(took for _, took, _ in self._recent)
        self._recent.clear()
        self._known.clear()  # the expected times are of other threads
        self._least.clear()
        if before > (_FASTER if self._context.threads < threads else _REGAINED) * now:
            self._before, self._wait = None, _CALM
            self._tell(self._context.threads)
        else:
            if self._context.threads > threads:
                self._wait *= 2
            self._end_trial()
