"""What `specdec tune` found out about a pair on this machine, kept for `run` and `compare`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.models import files
from specdec_cli.models.profiles import bundled_dir, config_dir
from specdec_cli.store import acceptance_traces as recordings

FORMAT = 1
_LONGEST_NAME = 100  # bytes of each model's name: file systems take 255 in all


@dataclass(frozen=True, slots=True)
class Tuning:
    """How fast a pair is on a machine, with which threads, and what its confidence is worth.

    machine: as `llama.library.machine` names it. gpu_layers, gpu_layers_draft: the offload that was measured.
    calibrations: by kind of sampling, as `kind_of` names it.
    """

    machine: str
    threads: int
    threads_draft: int
    gpu_layers: int
    gpu_layers_draft: int
    costs: Costs
    calibrations: dict[str, Calibration]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machine": self.machine,
            "threads": self.threads,
            "threads_draft": self.threads_draft,
            "gpu_layers": self.gpu_layers,
            "gpu_layers_draft": self.gpu_layers_draft,
            "costs": self.costs.to_json(),
            "calibrations": {kind: found.to_json() for kind, found in self.calibrations.items()},
        }


def kind_of(greedy: bool, accept: str) -> str:
    """The name of a kind of sampling: greedy, or at a temperature the acceptance rule, on which acceptance depends."""
    return "greedy" if greedy else accept


def path_of(target: Path, draft: Path) -> Path:
    """Where a pair's tuning is kept: in the folder of the user's profiles, named after the two files."""
    size = "-".join(str(path.stat().st_size) for path in (target, draft))
    digest = hashlib.sha256(f"{target.name}/{draft.name}/{size}".encode()).hexdigest()[:8]
    names = [path.stem.encode()[:_LONGEST_NAME].decode(errors="ignore") for path in (target, draft)]
    return config_dir() / "tuned" / f"{'+'.join(names)}-{digest}.json"


def recording_of(target: Path, draft: Path, kind: str) -> Path | None:
    """The recording of a pair: its own, or one that comes with specdec; None if there is none.

    Whether it is of these very models, `Recording.require` says.
    """
    own = path_of(target, draft).with_suffix(f".{kind}.json.gz")
    if own.exists():
        return own
    if target.parent == draft.parent and bundled_dir() in target.parents:
        bundled = target.parent / "recordings" / f"{kind}.json.gz"
        return bundled if bundled.exists() else None
    for path in sorted((bundled_dir() / "recordings").glob(f"*/{kind}.json.gz")):
        about = recordings.read(path).about
        if (about.get("target"), about.get("draft")) == (target.name, draft.name):
            return path
    return None


def save(target: Path, draft: Path, tuning: Tuning) -> Path:
    """Keep a pair's tuning, in place of an older one but for the calibrations it does not have.

    Returns the file; raises SpecdecError if it cannot be written.
    """
    path = path_of(target, draft)
    try:
        older = load(target, draft)
    except SpecdecError:
        older = None
    if older:  # what the other kind of sampling taught stays true
        tuning = replace(tuning, calibrations={**older.calibrations, **tuning.calibrations})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(tuning.to_json(), indent=1), "utf-8")
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or mend the folder.") from None
    return path


def require_writable(target: Path, draft: Path) -> None:
    """Raise SpecdecError now rather than after a minute of measuring."""
    files.require_writable(path_of(target, draft).parent)


def load(target: Path, draft: Path) -> Tuning | None:
    """A pair's tuning; None if there is none. Raises SpecdecError if its file is damaged."""
    path = path_of(target, draft)
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}")
        costs = data["costs"]
        other = float(costs["other"])
        if not 0 <= other < 1e6:
            raise ValueError("a cost is none")
        if min(int(data["threads"]), int(data["threads_draft"])) < 1:
            raise ValueError("a number of threads is none")
        return Tuning(
            machine=str(data["machine"]),
            threads=int(data["threads"]),
            threads_draft=int(data["threads_draft"]),
            gpu_layers=int(data["gpu_layers"]),
            gpu_layers_draft=int(data["gpu_layers_draft"]),
            costs=Costs(_curve(costs["verify"]), _curve(costs["draft"]), other),
            calibrations={kind: Calibration.from_json(found) for kind, found in data["calibrations"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise SpecdecError(f"cannot read {path}: {why}", "Run specdec tune again, or remove the file.") from None


def _curve(points: dict[str, float]) -> Curve:
    found = {int(n): float(seconds) for n, seconds in points.items()}
    if 1 not in found or min(found) < 1 or not all(0 < seconds < 1e6 for seconds in found.values()):
        raise ValueError("a cost curve is none")
    return Curve(found)
