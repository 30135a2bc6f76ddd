"""What a chat template may spend: bytes and seconds, paid for with every step that makes a value."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from itertools import chain
from operator import length_hint
from time import thread_time
from types import GeneratorType
from typing import Any

from jinja2 import TemplateError

from specdec_cli.decoding.errors import Interrupted

MOST_BITS = 20_000
"""Of a whole number: a division takes their square."""
WIDEST = 999
"""Characters that a value is padded to."""
_SECONDS = 3.0  # of this thread's own work, so that a busy machine is no reason to refuse
_ALLOWANCE = 64 << 20  # bytes
_PER_INPUT_BYTE = 1024
_STEP = 256  # bytes that any step costs: 250,000 of them take less than a second
_GROWTH = 64  # `split` makes 58 bytes of one


class Meter:
    """What a template may still spend, in bytes, and until when."""

    def __init__(self, stopped: Callable[[], bool], variables: Mapping[str, Any]) -> None:
        self._end = thread_time() + _SECONDS
        self._stopped = stopped
        self._weights: dict[int, tuple[object, float]] = {}
        """By id: containers, which nothing in the sandbox can change and which are kept here, and what they weigh."""
        self._left: float = _ALLOWANCE
        self._left += _PER_INPUT_BYTE * self.weight(dict(variables))

    def spend(self, size: float) -> None:
        """Pay for a step that makes so many bytes."""
        if self._stopped():
            raise Interrupted
        self._left -= size + _STEP
        self.require(0 if thread_time() < self._end else math.inf)

    def spend_on(self, text: str) -> str:
        """Pay for a copy of a text."""
        self.spend(sys.getsizeof(text))
        return text

    def require(self, size: float) -> None:
        """Refuse a step that makes more than may be there."""
        if size > self._left:
            raise TemplateError("it takes too much time or memory")

    def admit(self, value: Any) -> Any:
        """A value that a step has made, paid for, and not too large for any step that it may go into."""
        if isinstance(value, GeneratorType):
            return map(self.admit, value)
        if isinstance(value, (KeysView, ValuesView, ItemsView)):
            value = list(value)
        self.require(math.inf if isinstance(value, int) and value.bit_length() > MOST_BITS else 0)
        self.spend(sys.getsizeof(value))
        self.require(_GROWTH * self.weight(value))
        return value

    def weight(self, value: Any) -> float:
        """Bytes of a value spelled out: what is in it twice counts twice, as when it is printed or compared.

        Each level adds a tenth, so that nothing is nested deeper than some hundred levels.
        """
        if not isinstance(value, (list, tuple, dict)):
            return sys.getsizeof(value)
        if id(value) not in self._weights:
            self.spend(0)
            parts = chain(value, value.values()) if isinstance(value, dict) else value
            self._weights[id(value)] = value, sys.getsizeof(value) + 1.1 * sum(map(self.weight, parts))
        return self._weights[id(value)][1]


def _join_size(items: Any, d: Any = "", attribute: Any = None) -> int:
    return 4 * length_hint(items, _ALLOWANCE) * len(str(d))


def _replace_size(text: Any, old: Any, new: Any, count: Any = -1) -> int:
    return 4 * str(text).count(str(old)) * len(str(new))


def _indent_size(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    return 4 * (len(text) + 1) * (len(width) if isinstance(width, str) else width)


SIZES: dict[str, Callable[..., float]] = {
    "join": _join_size,
    ".join": lambda separator, items: _join_size(items, separator),
    "replace": _replace_size,
    ".replace": _replace_size,
    "indent": _indent_size,
    "round": lambda number, precision=0, method="": math.inf if abs(precision) > WIDEST else 0,
    "sum": lambda items, attribute=None, start=0: 0 if isinstance(start, (int, float)) else math.inf,
    "tojson": lambda value, indent=None, **_: math.inf if isinstance(indent, int) and indent > 16 else 0,
}
"""Bytes that filters and methods of texts make at most, where that is not proportional to what they are given."""
