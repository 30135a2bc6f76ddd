"""What a training of a draft says as it goes on, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CategoryAcceptance:
    """Drafts on the prompts of a category. by_place: the share of drafts that stood up to and with each place, of all
    that were so long. tokens_per_pass: of the target's passes.
    """

    category: str
    prompts: int
    passes: int
    by_place: tuple[float, ...]
    tokens_per_pass: float


@dataclass(frozen=True, slots=True)
class ExpectedSpeedup:
    """Over the target alone, from acceptance by place and what passes cost. draft_tokens: the best length, 0: none."""

    machine: str
    draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """A draft on prompts that its training did not see; the last category is all of them. branches: of its trees.
    target_s: seconds of the target's passes of one token. drafted_s: seconds of drafting for each token drafted.
    """

    draft: str
    branches: int
    categories: tuple[CategoryAcceptance, ...]
    target_s: float
    drafted_s: float
    expected: tuple[ExpectedSpeedup, ...]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How far a training is. agreement: with the target on held-out texts at each place of a draft, of the last look
    and of the best one.
    """

    step: int
    steps: int
    loss: float
    agreement: tuple[float, ...]
    best: tuple[float, ...]
    seconds_left: float


@dataclass(frozen=True, slots=True)
class DraftTrainingResult:
    """A trained draft. kind: eagle3, medusa, exit, distil or scratch. texts: of the target's, that it learnt from.
    agreement: with the target on held-out texts, at each place of a draft. before: of the draft to compare with.
    """

    kind: str
    target: str
    out: str
    bytes: int
    target_bytes: int
    texts: int
    steps: int
    agreement: tuple[float, ...]
    before: DraftFigures | None
    after: DraftFigures
    notes: tuple[str, ...]
    seconds: float
    run: str
