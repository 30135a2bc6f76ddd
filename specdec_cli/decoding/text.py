"""Turns token bytes into text: joins characters that are split across tokens, and never shows stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Turns a stream of tokens into text that can be shown at once. piece: returns the bytes of a token (empty for
    control tokens). stop: strings that end the answer; neither they nor anything after them is ever returned.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._piece = piece
        self._stop = tuple(stop)
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that can be shown with this token; sets `stopped` when a stop string is complete."""
        if self.stopped:
            return ""
        text = self._decoder.decode(self._piece(token))
        return self._release(text) if self._stop else text

    def flush(self) -> str:
        """At the end of the answer, the text held back as a possible start of a stop string. An incomplete character is
        dropped.
        """
        text, self._held = self._held, ""
        return text

    def render(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The text of rejected tokens, each on its own. Changes no state."""
        return tuple(self._piece(token).decode("utf-8", "replace") for token in tokens)

    def _release(self, text: str) -> str:
        self._held += text
        ends = [index for index in map(self._held.find, self._stop) if index >= 0]
        if ends:
            self.stopped = True
            safe, self._held = self._held[: min(ends)], ""
        else:
            tails = (self._held[cut:] for cut in range(len(self._held) + 1))
            tail = next(tail for tail in tails if any(stop.startswith(tail) for stop in self._stop))
            safe, self._held = self._held.removesuffix(tail), tail
        return safe
