"""A text of a target with what it computed of it: what drafts learn from. Each is a file, so that recording goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.user_files import replacing

LIKELIEST = 64
"""So many of the target's likeliest tokens are kept of each place."""


@dataclass(frozen=True, slots=True)
class RecordedText:
    """Of each of its T tokens: the target's likeliest next tokens and their log-probabilities, (T, LIKELIEST), and its
    hidden rows, (T, any). prompt: how many tokens it did not write itself.
    """

    tokens: NDArray[np.int32]
    likeliest: NDArray[np.int32]
    log_p: NDArray[np.float16]
    rows: NDArray[np.float16]
    prompt: int

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            np.savez(
                file,
                tokens=self.tokens,
                likeliest=self.likeliest,
                log_p=self.log_p,
                rows=self.rows,
                prompt=np.array(self.prompt),
            )

    @classmethod
    def load(cls, path: Path) -> RecordedText:
        with np.load(path) as file:
            return cls(file["tokens"], file["likeliest"], file["log_p"], file["rows"], int(file["prompt"]))
