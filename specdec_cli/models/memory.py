"""What a model's cache takes in memory, told from its header, so that too much is refused before it is tried."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import Header

_F16_BYTES = 2


def cache_bytes(header: Header, n_ctx: int) -> int:
    """Bytes of an f16 key-value cache for `n_ctx` tokens; layers without attention count as nothing.

    An estimate: sliding windows and compressed caches take less.
    """
    layers = _number(header.setting("block_count"))
    heads = _number(header.setting("attention.head_count"))
    width = _number(header.setting("embedding_length"))
    interval = _number(header.setting("full_attention_interval"), 1)
    kv_heads = header.setting("attention.head_count_kv")
    total_kv_heads = (
        sum(_whole(kv_heads))
        if isinstance(kv_heads, np.ndarray)
        else _number(kv_heads, heads) * (layers // max(1, interval))
    )
    head = width // heads if heads else 0
    key = _number(header.setting("attention.key_length"), head)
    value = _number(header.setting("attention.value_length"), head)
    return n_ctx * total_kv_heads * (key + value) * _F16_BYTES


def require(header: Header, n_ctx: int, available: int | None) -> None:
    """Raise SpecdecError when a model's cache cannot fit, rather than let the system kill the process.

    available: bytes of main memory free; None if unknown, or if the cache lies on a GPU, where llama.cpp itself
    reports a failed allocation.
    """
    if available is None:
        return
    needed = cache_bytes(header, n_ctx)
    if needed > available:
        raise SpecdecError(
            f"a context of {n_ctx:,} tokens of {header.name} needs {needed / 1e9:,.1f} GB; "
            f"{available / 1e9:,.1f} GB are free",
            "Give a smaller context (-c).",
        )


def _number(value: Any, default: int = 0) -> int:
    if isinstance(value, np.ndarray):
        return max(_whole(value), default=0)
    return value if type(value) is int and value >= 0 else default


def _whole(values: np.ndarray[Any, Any]) -> list[int]:
    """What of an array, in which anything may stand, can count something."""
    return [int(value) for value in values if value >= 0] if values.dtype.kind in "iu" else []
