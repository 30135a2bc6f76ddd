"""What drafting has shown about a pair on this machine, kept from one start to the next.

What n-grams have shown isn't kept: it depends on the text. With it, the recorded answers are 0.999 as fast.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.json_store import JsonStore, digest
from specdec_cli.llama import library
from specdec_cli.user_files import cache_dir
from specdec_cli.weights import tuning
from specdec_cli.weights.model_pair import setup_of_pair
from specdec_cli.weights.weights import Weights


@dataclass(frozen=True, slots=True)
class Learned:
    """What one drafter has shown with one kind of sampling. left: of its loss budget, in steps of the target alone."""

    calibration: Calibration
    left: float

    def begin(self, prior: Calibration, first: LossBudget) -> tuple[Calibration, LossBudget]:
        """What to start with: halfway back to `prior` and `first`, with which a first start begins, so that a text on
        which drafting didn't pay doesn't decide about the next one.
        """
        calibration, budget = copy.deepcopy(self.calibration), copy.copy(first)
        calibration.age(prior)
        budget.left = min(self.left, budget.left)
        budget.refill()
        return calibration, budget


@dataclass(frozen=True, slots=True)
class _File:
    drafters: dict[str, Learned]


_LEARNED = JsonStore(lambda: cache_dir() / "learned", _File, "It will be learned again.")


class Learning:
    """What is known about a pair's drafters, by a name for drafter and kind of sampling, and what they show now."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._known: dict[str, Learned] | None = None
        self._now: dict[str, tuple[Calibration, LossBudget]] = {}

    def begin(self, name: str, calibration: Calibration, budget: LossBudget) -> tuple[Calibration, LossBudget]:
        """What a drafter starts with: what it has shown in this session or before, or else these. Both follow what
        happens, and `keep` saves them.
        """
        if self._known is None:
            self._known = self._load()
        now = self._now.get(name)  # with other settings, such as another temperature
        if known := Learned(now[0], now[1].left) if now else self._known.get(name):
            calibration, budget = known.begin(calibration, budget)
        self._now[name] = calibration, budget
        return calibration, budget

    def share(self, name: str, calibration: Calibration) -> None:
        """A drafter follows this calibration instead, which other answers have too."""
        self._now[name] = calibration, self._now[name][1]

    def keep(self) -> None:
        """Save what was learned for the next start, if possible."""
        found = {name: Learned(calibration, budget.left) for name, (calibration, budget) in self._now.items()}
        if found:
            with suppress(SpecdecError, OSError):
                known = {**self._load(), **found}
                known = {name: learned for name, learned in known.items() if learned.calibration.looks}
                _LEARNED.save(self._file, _File(known))

    @property
    def _file(self) -> str:
        pair = self._weights.pair
        setup = setup_of_pair(pair, self._weights.settings)
        stem = tuning.path_of(pair.target_path, pair.draft_path or pair.target_path, setup).stem
        return f"{stem}-{digest(library.machine(), digits=8)}"  # machines may share a home directory

    def _load(self) -> dict[str, Learned]:
        try:
            kept = _LEARNED.load(self._file)
        except (SpecdecError, OSError) as error:
            self._weights.note(f"what drafting has learned is not used: {error}")
            return {}
        return kept.drafters if kept else {}
