"""llama.cpp's functions, in a build that works on this processor. All other modules import `lib` from here.

Loading a build for another processor ends the process, so `kernels` tries it first in a separate process.
"""

from __future__ import annotations

from pathlib import Path

from specdec_cli.llama import kernels

kernels.verdict()

import llama_cpp.llama_cpp as lib  # noqa: E402

FOLDER = Path(lib._lib._name).parent
"""The folder of the libraries."""

__all__ = ["FOLDER", "lib"]
