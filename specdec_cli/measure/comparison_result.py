"""The result of a comparison. These dataclasses are the object of `compare --json`, `--save` and `--against`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.statistics import LEAST_PROMPTS
from specdec_cli.measure.overall_verdict import OverallVerdict, overall_verdict
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.summaries import Summary
from specdec_cli.measure.trials import Trial

ShortText: TypeAlias = Annotated[str, Meta(max_length=1000)]
"""What is shown of another result, which may be anybody's."""


@dataclass(frozen=True, slots=True)
class CostPoints:
    """Measured costs: seconds of a pass by its number of tokens, and per step whatever it drafts."""

    verify: dict[int, float]
    draft: dict[int, float]
    other: float

    @classmethod
    def of(cls, costs: Costs) -> CostPoints:
        verify, draft = (dict(sorted(curve.points.items())) for curve in (costs.verify, costs.draft))
        return cls(verify, draft, costs.other)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model file. cache_bytes: of its keys and values."""

    file: str
    parameters: int
    bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that llama.cpp could use. free, total: bytes of memory."""

    name: str
    description: str
    kind: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class MachineInfo:
    devices: tuple[DeviceInfo, ...]
    threads: int
    platform: ShortText


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """One way of decoding. baseline: the name of the one that it is measured against, its own for a baseline."""

    name: str
    baseline: str
    settings: RecordedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergentAnswer:
    """An answer that is not its baseline's, and why; see `decoding.divergence.Divergence`."""

    arm: str
    prompt: str
    position: int
    width: int = 0
    own_margin: float | None = None
    margin: float | None
    unit: str = "logits"
    bug: str = ""
    kind: Literal["rounding", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """All that a comparison measured: every figure can be computed from it again.

    partial: whether it was stopped before all trials were done. build: llama.cpp's. experts: of the target, 0 for a
    dense model. context: in tokens. corpus: tokens of `--ngram-corpus`. prompts: text by id. rounding: which passes
    agree, if that was measured. skipped: prompts too long for the context. noise: see `statistics.noise`, by baseline.
    exactness: how many answers are the baseline's own, by variant and kind. verdicts: sentences, by variant. advice:
    sentences on all variants together. when: in ISO 8601, "" where it is not known, as is command: the command line.
    """

    format: Literal[1] = 1
    specdec: str
    partial: bool = False
    machine: MachineInfo
    versions: Annotated[dict[ShortText, ShortText], Meta(max_length=100)]
    build: str = ""
    models: dict[str, ModelInfo]
    experts: int = 0
    context: int
    corpus: int | None = None
    load_s: float = 0.0
    max_tokens: int
    notes: tuple[str, ...] = ()
    prompts: dict[str, str]
    rounding: str | None = None
    rounds: int
    seed: int = 0
    arms: tuple[VariantInfo, ...]
    skipped: tuple[str, ...] = ()
    noise: dict[str, float | None] = field(default_factory=dict)
    costs: CostPoints | None = None
    summaries: tuple[Summary, ...] = ()
    exactness: dict[str, dict[str, int]] = field(default_factory=dict)
    divergences: tuple[DivergentAnswer, ...] = ()
    verdicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    when: str = ""
    command: str = ""
    trials: tuple[Trial, ...]

    @classmethod
    def from_json(cls, text: bytes | str) -> ComparisonResult:
        """What `to_json` gave, also in an older version. Raises msgspec.ValidationError on anything else, ValueError or
        RecursionError on what is no JSON.
        """
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> Any:
        return {**msgspec.to_builtins(self, str_keys=True), "verdict": msgspec.to_builtins(self.verdict)}

    @property
    def verdict(self) -> OverallVerdict:
        """Whether drafting pays, and the ranking of all variants; of older results too."""
        wrong = {each.arm for each in self.divergences if each.kind == "wrong"}
        return overall_verdict(self._summaries("all"), {arm.name: arm.baseline for arm in self.arms}, wrong)

    @property
    def categories(self) -> list[str]:
        """`all`, and each category that has prompts enough for an interval, if there are several categories."""
        return [name for name, prompts in self._category_sizes.items() if name == "all" or prompts >= LEAST_PROMPTS]

    @property
    def small_categories(self) -> list[str]:
        """The categories of too few prompts for an interval."""
        return [name for name in self._category_sizes if name not in self.categories]

    @property
    def _category_sizes(self) -> dict[str, int]:
        prompts = {category: set[str]() for category in (each.category for each in self.summaries)}
        for trial in self.trials:
            prompts.get(trial.category, set()).add(trial.prompt)
        return {category: len(names) for category, names in prompts.items()}

    def of_category(self, category: str) -> list[Summary]:
        """Each variant's figures, in the order of the ranking, which is the same in all categories."""
        order = self.verdict.ranking
        return sorted(self._summaries(category), key=lambda summary: order.index(summary.arm))

    def _summaries(self, category: str) -> list[Summary]:
        return [summary for summary in self.summaries if summary.category == category]

    def speeds(self, arm: str) -> Mapping[str, float]:
        """A variant's median tokens per second by the text of the prompt."""
        speeds: dict[str, list[float]] = {}
        for trial in self.trials:
            if trial.arm == arm and trial.tokens_per_s and trial.prompt in self.prompts:
                speeds.setdefault(self.prompts[trial.prompt], []).append(trial.tokens_per_s)
        return {prompt: statistics.median(values) for prompt, values in speeds.items()}
