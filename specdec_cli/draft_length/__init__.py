"""How many tokens to draft: the policies, and which of them adapts for which drafter."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from specdec_cli.decoding.types import LengthPolicy
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cascade_length import CascadeLength
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.known_draft import KNOWN_START, LONGEST_KNOWN, KnownLength, WholeDraftLength
from specdec_cli.draft_length.loss_budget import PLANNING, START, LossBudget


class DraftForm(Enum):
    """How a drafter makes a draft, which decides what adapts its length.

    GROWN: by passes of a draft model, token by token. KNOWN: at no cost, all of it at once. WHOLE: likewise, but
    only the whole draft is of use.
    """

    GROWN = "grown"
    KNOWN = "known"
    WHOLE = "whole"

    @property
    def longest(self) -> int:
        """The longest draft that adapts; of WHOLE ones their size decides."""
        return LONGEST_KNOWN if self is DraftForm.KNOWN else LONGEST

    def budget(self, hopeful: bool = False, plans: bool = False) -> LossBudget:
        """What drafts may lose at first. hopeful: the user expects known drafts to be right, so as much may be lost as
        with a draft model. plans: a GPU plans passes anew whenever a draft model begins to draft.
        """
        start = KNOWN_START if self is DraftForm.KNOWN and not hopeful else START
        return LossBudget(start + PLANNING if plans else start)


def adaptive_length(
    form: DraftForm,
    costs: CostModel,
    calibration: Calibration,
    budget: LossBudget,
    min_p: float = 0.0,
    greedy: bool = True,
    prior: Calibration | None = None,
) -> LengthPolicy:
    """The length that pays, for one drafter. calibration: what a draft model's confidence is worth. budget: what drafts
    may lose. Both follow what happens. prior: the calibration before anything was learned, if not the usual one.
    """
    if form is DraftForm.GROWN:
        return AutoLength(costs, calibration, min_p, greedy, budget, prior)
    return (WholeDraftLength if form is DraftForm.WHOLE else KnownLength)(costs, min_p, budget)


def cascade_length(policies: Mapping[str, LengthPolicy]) -> LengthPolicy:
    """One policy for several drafters, by their names in the order in which they are asked."""
    return CascadeLength(policies) if len(policies) > 1 else next(iter(policies.values()))
