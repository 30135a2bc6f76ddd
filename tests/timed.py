"""Machines made of numbers, and an adaptive policy that believes in one of them: deterministic runs over fakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import LengthPolicy, Step
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel

FREE = Curve({1: 1e-6})
"""Drafting without a model."""
FLAT = Costs(Curve({1: 0.010, 17: 0.012}), Curve({1: 0.001, 512: 0.010}))
"""A GPU with a large target: checking is nearly free."""
STEEP = Costs(Curve({1: 0.010, 17: 0.170}), Curve({1: 0.004, 512: 0.4}))
"""A small CPU: checking a token costs what writing one does."""


def scaled(costs: Costs, one: float) -> Costs:
    """The same machine, with a single token taking `one` second."""
    factor = one / costs.verify(1)
    return Costs(*(Curve({n: s * factor for n, s in curve.points.items()}) for curve in (costs.verify, costs.draft)))


def auto(costs: Costs = FLAT, greedy: bool = True) -> AutoLength:
    return AutoLength(CostModel(costs, LONGEST), Calibration.prior(greedy))


class Timed:
    """A policy that is told what steps cost on a machine, not what they take here, and what they came to.

    policy: an adaptive one that believes in the machine, if no other is named.
    """

    def __init__(self, costs: Costs = FLAT, greedy: bool = True, policy: LengthPolicy | None = None) -> None:
        self.policy = policy or auto(costs, greedy)
        self.costs = costs
        self.steps: list[Step] = []
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def observe(self, step: Step, own_time: bool = True) -> None:
        drafted = len(step.drafted)
        draft_s, verify_s = drafted * self.costs.draft(1), self.costs.verify(drafted + 1)
        self.steps.append(step)
        self.seconds += draft_s + verify_s
        self.policy.observe(replace(step, verify_s=verify_s, draft_s=draft_s, sample_s=0.0, at=0.0), own_time)

    @property
    def drafted(self) -> list[int]:
        """The draft length of each step."""
        return [len(step.drafted) for step in self.steps]

    @property
    def alone(self) -> float:
        """Seconds that the target takes for the same tokens."""
        return sum(len(step.tokens) for step in self.steps) * self.costs.verify(1)

    @property
    def speedup(self) -> float:
        return self.alone / self.seconds
