"""llama.cpp's functions, in a build that works on this processor: whoever needs them imports `lib` from here.

A build for another processor ends the process that loads it, so `kernels` has tried it before, in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

from specdec_cli.llama import kernels

kernels.verdict()

import llama_cpp.llama_cpp as lib  # noqa: E402

FOLDER = Path(lib._lib._name).parent
"""Where the libraries lie."""

__all__ = ["FOLDER", "lib"]
