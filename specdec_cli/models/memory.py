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
    kv_heads = header.setting("attention.head_count_kv")
    total_kv_heads = int(kv_heads.sum()) if isinstance(kv_heads, np.ndarray) else _number(kv_heads, heads) * layers
    head = width // heads if heads else 0
    key = _number(header.setting("attention.key_length"), head)
    value = _number(header.setting("attention.value_length"), head)
    return n_ctx * total_kv_heads * (key + value) * _F16_BYTES


def require(target: Header, draft: Header | None, n_ctx: int, available: int | None, gpu: bool) -> None:
    """Raise SpecdecError when the caches cannot fit, rather than let the system kill the process.

    available: bytes of main memory free, None if unknown. With a GPU the caches lie elsewhere, and
    llama.cpp itself reports a failed allocation.
    """
    if gpu or available is None:
        return
    needed = cache_bytes(target, n_ctx) + (cache_bytes(draft, n_ctx) if draft else 0)
    if needed > available:
        raise SpecdecError(
            f"a context of {n_ctx:,} tokens needs {needed / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB are free",
            "Give a smaller context (-c).",
        )


def _number(value: Any, default: int = 0) -> int:
    if isinstance(value, np.ndarray):
        return int(value.max(initial=0))
    return value if isinstance(value, int) else default
