"""The real models that the tests here run on, and where they lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
# Read when this file is imported: inside of a test the user's settings are gone.
FOLDER = Path(os.environ.get("SPECDEC_REAL_MODELS") or _CACHE / "specdec-real-models")


@dataclass(frozen=True)
class RealModel:
    """A model file. repo: where its maker published the very same bytes, if that is so."""

    file: str
    sha256: str
    repo: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / self.file


# SmolLM2 135M Instruct, Q4_1; Qwen2.5 Coder 0.5B Instruct, the draft model of the third; 1.5B Instruct, both Q4_K_M.
SMOL = RealModel("SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
QWEN_SMALL = RealModel(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
)
QWEN = RealModel(
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
)
MODELS = (SMOL, QWEN_SMALL, QWEN)


def main() -> None:
    """Print the names of what is missing, for `make test-real`."""
    print(" ".join(model.file for model in MODELS if not model.path.is_file()))


if __name__ == "__main__":
    main()
