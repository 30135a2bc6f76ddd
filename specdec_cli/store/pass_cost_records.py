"""What a model's passes cost here, and which agree bit for bit: kept from one start to the next, one file a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models import files

FORMAT = 1
_LONGEST_NAME = 100
_MOST_S = 1e6


@dataclass(frozen=True, slots=True)
class Place:
    """Where passes were timed: the machine's devices, the build of llama.cpp, CPU threads and layers on a GPU."""

    machine: str
    build: str
    threads: int
    gpu_layers: int


@dataclass(frozen=True, slots=True)
class KeptCosts:
    """Seconds of a pass over n tokens: verify, where every row of logits is read, draft, where one is."""

    verify: Mapping[int, float] = field(default_factory=dict)
    draft: Mapping[int, float] = field(default_factory=dict)
    agreement: Agreement | None = None


def load(model: Path, place: Place) -> KeptCosts | None:
    """What is kept of a model file in one place; None if there is nothing.

    Raises SpecdecError if it is damaged, or of another machine or build.
    """
    path = path_of(model, place)
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}")
        for what in ("machine", "build"):
            if data[what] != getattr(place, what):
                raise ValueError(f"it is of another {what}")
        agreement = data["agreement"]
        return KeptCosts(
            _points(data["verify"]),
            _points(data["draft"]),
            None if agreement is None else Agreement.from_json(agreement),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise SpecdecError(f"cannot use the costs kept in {path.name}: {why}", f"Remove {path}.") from None


def save(model: Path, place: Place, costs: KeptCosts) -> None:
    """Keep it, in place of what was. Raises SpecdecError if it cannot be written."""
    data = {
        "format": FORMAT,
        "model": model.name,
        "machine": place.machine,
        "build": place.build,
        "verify": {str(n): seconds for n, seconds in sorted(costs.verify.items())},
        "draft": {str(n): seconds for n, seconds in sorted(costs.draft.items())},
        "agreement": costs.agreement.to_json() if costs.agreement else None,
    }
    files.write_whole(path_of(model, place), json.dumps(data, indent=1))


def path_of(model: Path, place: Place) -> Path:
    """Where the costs of a model file are kept: named after the file, its size and age, the threads and layers."""
    about = model.stat()
    identity = f"{model.name}/{about.st_size}/{about.st_mtime_ns}/{place.threads}/{place.gpu_layers}"
    digest = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:12]
    stem = model.stem.encode(errors="replace")[:_LONGEST_NAME].decode(errors="ignore")
    return Path(user_cache_dir("specdec", appauthor=False)) / "costs" / f"{stem}-{digest}.json"


def _points(data: Any) -> dict[int, float]:
    points = {int(n): float(seconds) for n, seconds in data.items()}
    if not all(n > 0 and 0 < seconds < _MOST_S for n, seconds in points.items()):
        raise ValueError("a cost is not a positive number")
    return points
