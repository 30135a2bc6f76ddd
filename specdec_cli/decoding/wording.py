"""Numbers and lists as English."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str, several: str = "") -> str:
    """As in "1 token" and "1,024 tokens". several: the plural, if it isn't `what` with an s."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def listed(words: Sequence[str]) -> str:
    """As in "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
