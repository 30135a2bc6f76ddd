"""Machines made of numbers, and an adaptive policy that believes in one of them: deterministic runs over fakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel

FLAT = Costs(Curve({1: 0.010, 17: 0.012}), Curve({1: 0.001, 512: 0.010}))
"""A GPU with a large target: checking is nearly free."""
STEEP = Costs(Curve({1: 0.010, 17: 0.170}), Curve({1: 0.004, 512: 0.4}))
"""A small CPU: checking a token costs what writing one does."""


def auto(costs: Costs = FLAT, greedy: bool = True) -> AutoLength:
    return AutoLength(CostModel(costs, LONGEST), Calibration.prior(greedy))


class Timed:
    """An adaptive policy that is told what steps cost on a machine, not what they take here."""

    def __init__(self, costs: Costs = FLAT, greedy: bool = True) -> None:
        self.policy = auto(costs, greedy)
        self.costs = costs
        self.steps: list[Step] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def observe(self, step: Step, own_time: bool = True) -> None:
        self.steps.append(step)
        drafted = len(step.drafted)
        draft_s = drafted * self.costs.draft(1)
        self.policy.observe(
            replace(step, verify_s=self.costs.verify(drafted + 1), draft_s=draft_s, sample_s=0.0, at=0.0)
        )
