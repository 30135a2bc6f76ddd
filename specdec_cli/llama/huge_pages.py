"""Huge pages for weights, which each pass reads as a whole: fewer look-ups of addresses, so passes take less time.

Many Linux distributions give huge pages only to memory that asks for them (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled), and ggml doesn't ask. Pages that have been written stay small, so it must
be asked after memory was allocated and before it's filled.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_SETTING, _MAPPINGS = Path("/sys/kernel/mm/transparent_hugepage/enabled"), Path("/proc/self/maps")
_MADV_HUGEPAGE = 14
_LEAST = 16 << 20
"""Smaller pieces of memory, in bytes, aren't worth it."""


class NewMemory:
    """The memory that this process allocates after this object was made, in large pieces. Linux may join such a piece
    with older memory beside it, which then counts, too.
    """

    def __init__(self) -> None:
        self._old = _large() if _is_asked_for() else None

    def use_huge_pages(self) -> None:
        """Ask for huge pages. Does nothing the second time, or on systems where nobody needs to ask."""
        if self._old is None:
            return
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in _large() - self._old:
            madvise(start, end - start, _MADV_HUGEPAGE)  # if it's refused, the pages stay small
        self._old = None


def _is_asked_for() -> bool:
    try:
        return "[madvise]" in _SETTING.read_text()
    except OSError:  # not Linux, or a kernel without them
        return False


def _large() -> set[tuple[int, int]]:
    """The addresses of the large private mappings that belong to no file. Raises nothing: llama.cpp calls it."""
    found: set[tuple[int, int]] = set()
    try:
        lines = _MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        where, access, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in where.split("-"))
        if access == "rw-p" and inode == "0" and not name and end - start >= _LEAST:
            found.add((start, end))
    return found
