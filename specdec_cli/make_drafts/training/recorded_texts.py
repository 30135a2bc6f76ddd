"""The training data of one text: tokens, and what the target computed for each. Each text is a file, so that recording
can be resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.user_files import replacing

LIKELIEST = 64
"""How many of the target's most likely tokens are kept for each position."""


@dataclass(frozen=True, slots=True)
class RecordedText:
    """For each of its T tokens: the target's most likely next tokens and their log-probabilities, (T, LIKELIEST), and
    its hidden rows, (T, any). prompt: how many tokens are the prompt's.
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
