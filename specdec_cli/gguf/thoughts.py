"""Separates what a reasoning model thinks from its answer, while the text comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Literal

_MARKS = {"<think>": "</think>", "[THINK]": "[/THINK]", "<|channel>thought": "<channel|>"}
"""What begins thoughts, and what ends them; the second are Mistral's, the last Gemma's."""
CHANNEL, MESSAGE, _END_OF_MESSAGE = "<|channel|>", "<|message|>", "<|end|>"
"""gpt-oss writes several messages: a header with the channel's name, MESSAGE, a text and _END_OF_MESSAGE."""
_LAST = 8
"""How many tokens of a prompt show whether it opens the thoughts."""


def opens_thoughts(prompt: Sequence[int], piece: Callable[[int], bytes]) -> bool:
    """Whether the chat template wrote <think> at the end of a prompt, after the last control token."""
    last = [*takewhile(bool, map(piece, reversed(prompt[-_LAST:])))]
    return b"".join(reversed(last)).rstrip().endswith(b"<think>")


class Thoughts:
    """Splits the text of one answer. opened: whether its prompt opens the thoughts."""

    def __init__(self, opened: bool = False) -> None:
        self._held = ""
        """Text that may belong to a mark."""
        self._part: Literal["beginning", "header", "thoughts", "answer"] = "thoughts" if opened else "beginning"
        self._end = "</think>"
        self._after_mark = opened
        """Whether white space is dropped."""

    def push(self, text: str, ended: bool) -> tuple[str, str]:
        """The thoughts and the part of the answer that are certain with this text. ended: whether it's the last."""
        self._held += text
        thoughts, before = "", None
        while self._part not in ("answer", before):
            before = self._part
            if before == "beginning":
                self._begin(ended)
            elif before == "thoughts":
                thoughts += self._think(ended)
            elif MESSAGE in self._held:
                header, _, self._held = self._held.partition(MESSAGE)
                self._part = "answer" if f"{CHANNEL}final" in header else "thoughts"
                self._after_mark = self._part == "thoughts"
        answer = ""
        if self._part == "answer":
            self._drop_space()
            answer, self._held = self._held, ""
        return thoughts, answer

    def _begin(self, ended: bool) -> None:
        begun = self._held.lstrip()
        if mark := next(filter(begun.startswith, _MARKS), None):
            self._part, self._held, self._after_mark = "thoughts", begun.removeprefix(mark), True
            self._end = _MARKS[mark]
        elif begun.startswith(CHANNEL):
            self._part, self._end = "header", _END_OF_MESSAGE
        elif ended or not any(mark.startswith(begun) for mark in (*_MARKS, CHANNEL)):
            self._part = "answer"

    def _think(self, ended: bool) -> str:
        """The held thoughts, without the mark that ends them or a beginning of it."""
        self._drop_space()
        text, found, rest = self._held.partition(self._end)
        cut = len(text)
        if found:
            self._part, self._after_mark = "header" if self._end == _END_OF_MESSAGE else "answer", True
        elif not ended:
            cut = next(at for at in range(max(cut - len(self._end), 0), cut + 1) if self._end.startswith(text[at:]))
        self._held = rest or text[cut:]
        return text[:cut]

    def _drop_space(self) -> None:
        if self._after_mark:
            self._held = self._held.lstrip()
            self._after_mark = not self._held
