"""The result of a tuning. These dataclasses are the object of `tune --json`."""

from dataclasses import dataclass
from typing import Any

import msgspec

from specdec_cli.measure.comparison_result import CostPoints
from specdec_cli.measure.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """What a pair is predicted to come to under some costs. recorded_tokens: places with a recorded draft token."""

    target: str
    draft: str
    greedy: bool
    recorded_tokens: int
    costs: CostPoints
    predictions: tuple[Prediction, ...]
    verdict: tuple[str, ...]

    def to_json(self) -> Any:
        return msgspec.to_builtins(self, str_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTuning(TuningResult):
    """The same for this machine. threads_tried: by model, seconds of a token by number of threads.

    placement_tried: seconds of a draft token by device; empty if only one was tried. filled: by model, seconds of a
    token in a filled cache, and how many `tokens` that holds; empty if a cache cannot be rewound. memory: bytes by
    model. kept: the file that `run` and `compare` read; empty if it
    could not be written.
    """

    machine: str
    threads: int
    threads_draft: int
    gpu_layers: int
    gpu_layers_draft: int
    threads_tried: dict[str, dict[int, float]]
    placement_tried: dict[str, float]
    filled: dict[str, float]
    memory: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class HardwareInfo:
    """Another machine, as in `profiles/hardware`. basis: `measured` by specdec, or `derived` from `source`."""

    name: str
    description: str
    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePrediction(TuningResult):
    """The same for another machine."""

    hardware: HardwareInfo
