"""What the passes of a pair cost on this machine, as tuned, as kept, or measured now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.engine.loaded_models import LoadedModels
from specdec_cli.engine.pass_costs import PassCosts


class PairCosts:
    """The costs of the models' contexts, which must be open. Measuring takes a fraction of a second, once."""

    def __init__(self, models: LoadedModels) -> None:
        self._models = models

    @property
    def _target(self) -> PassCosts:
        if self._models.target.costs is None:
            raise RuntimeError("the contexts are opened first")
        return self._models.target.costs

    def of_pair(self, text: Sequence[int], budget_s: float | None = None) -> Costs:
        """What passes of both models cost: as tuned, or else as kept, or measured on some text."""
        if self._models.tuned_costs is not None:
            return self._models.tuned_costs
        if self._models.draft is None or self._models.draft.costs is None:
            raise RuntimeError("there is no draft model")
        budgets: list[list[float]] = [[], []] if budget_s is None else [[budget_s * 0.7], [budget_s * 0.3]]
        return Costs(self._target.verify(text, *budgets[0]), self._models.draft.costs.draft(text, *budgets[1]))

    def verify(self, text: Sequence[int]) -> Curve:
        return self._target.verify(text)

    def assume(self, costs: Costs) -> None:
        """Be on a machine with these costs, of which nothing has been learned yet."""
        models = self._models
        models.tuned_costs = models.tuning = None
        for loaded in models.all:
            if loaded.costs is not None:
                loaded.costs.assume(costs)
        models.on_threads_changed()

    def agree(self, text: Sequence[int]) -> Agreement:
        """Which passes of the target agree bit for bit; measured once."""
        agreement = self._target.agree(text)
        notes = self._models.notes
        if (limits := self._target.limits(agreement)) and limits not in notes:
            notes.append(limits)
        return agreement

    @property
    def agreement(self) -> Agreement | None:
        return self._target.agreement

    @property
    def measured_s(self) -> float:
        return sum(loaded.costs.measured_s for loaded in self._models.all if loaded.costs)

    def keep(self, learned: Iterable[dict[int, float]]) -> None:
        """Keep what is known for the next start; the notes say so if that fails.

        learned: seconds of the target's passes over n tokens, as answers have shown them.
        """
        if self._models.target.costs:
            for seconds in learned:
                self._target.learn(seconds)
        for loaded in self._models.all:
            if loaded.costs:
                loaded.costs.keep()
