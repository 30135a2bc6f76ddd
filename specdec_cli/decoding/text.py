"""Token bytes to text: characters split across tokens are put together, stop strings never reach the screen."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Turns a stream of tokens into text that can be shown at once. piece: the bytes of one token (empty for control
    tokens). stop: strings that end the answer; neither they nor anything after them is ever returned.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._piece = piece
        self._stop = tuple(stop)
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that became certain with this token; sets `stopped` when a stop string is complete."""
        if self.stopped:
            return ""
        text = self._decoder.decode(self._piece(token))
        return self._release(text) if self._stop else text

    def flush(self) -> str:
        """What was held back, at the end of the answer: the start of a stop string. A character that was cut off in
        the middle is left out.
        """
        text, self._held = self._held, ""
        return text

    def render(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The text of rejected tokens, each by itself. Changes nothing."""
        return tuple(self._piece(token).decode("utf-8", "replace") for token in tokens)

    def _release(self, text: str) -> str:
        self._held += text
        ends = [index for index in map(self._held.find, self._stop) if index >= 0]
        if ends:
            self.stopped = True
            safe, self._held = self._held[: min(ends)], ""
        else:
            starts = (stop[:size] for stop in self._stop for size in range(1, len(stop)))
            cut = len(self._held) - max((len(start) for start in starts if self._held.endswith(start)), default=0)
            safe, self._held = self._held[:cut], self._held[cut:]
        return safe
