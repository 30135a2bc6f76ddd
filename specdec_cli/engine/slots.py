"""Several answers at once: slots, each an engine of its own, whose texts share the caches of one pair of models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.types import REVIEWED
from specdec_cli.draft_length import LONGEST, SharedLoad
from specdec_cli.engine.config import Settings
from specdec_cli.engine.context_plan import ContextPlan
from specdec_cli.engine.drafting import Drafting
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.loaded_model import LoadedModel
from specdec_cli.engine.loaded_models import LoadedModels
from specdec_cli.engine.pass_costs import PairCosts
from specdec_cli.gguf import memory
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.shared_context import SharedPasses

_MEASURED_TEXT = "def add(a, b):\n    return a + b\n"
"""What passes are timed with before the first request comes."""


class SlotModels(LoadedModels):
    """The models of a pair with the texts of one slot; these stay open."""

    def __init__(self, models: LoadedModels, parts: Sequence[LoadedModel], plan: ContextPlan, n_ctx: int) -> None:
        vars(self).update(vars(models))
        by_role = {part.role: part for part in parts}
        self.target = by_role["target"]
        self.draft, self.small = by_role.get("draft"), by_role.get("small draft")
        self.notes, self.plan = [], plan
        self._settings = replace(self._settings, ctx=n_ctx)

    def open(self, prompt_tokens: int, ways: Sequence[Settings]) -> None:
        """Nothing is opened. Raises SpecdecError if a slot has no room for the prompt, or cannot do what is asked."""
        ContextPlan.of(self._settings, ways, prompt_tokens, self.target.model, self.plan)
        for way in ways:
            require_chains(way)


class Slots(AbstractContextManager["Slots"]):
    """The slots of an engine, `count` of them, each with n_ctx tokens of context. load: of them all.

    The engine itself gives no answers then; closing it ends them all. Raises SpecdecError if memory is short,
    UsageError on settings that slots cannot have.
    """

    def __init__(self, engine: Engine, count: int, n_ctx: int, load: SharedLoad) -> None:
        require_chains(engine.settings)
        engine.read_corpus()
        self.engine, models = engine, engine.models
        settings = replace(engine.settings, ctx=n_ctx)
        plan = ContextPlan.of(settings, [settings], 1, models.target.model, None)
        plan = replace(plan, rows=max(plan.rows, 1 + LONGEST))  # a request may ask for more
        interrupts = [Interrupt() for _ in range(count)]
        self.passes: dict[str, SharedPasses] = {}
        """By the roles of the models, the target first."""
        shares = [self._share(loaded, n_ctx, plan.rows, interrupts) for loaded in models.all]
        parts = [[part for part in own if part] for own in zip(*shares, strict=True)]
        slots = [SlotModels(models, own, plan, n_ctx) for own in parts]
        self.engines = [_slot(engine, *each, load) for each in zip(slots, interrupts, strict=True)]
        models.on_threads_changed = self._forget
        self.costs = self._measured()
        load.begin(self.costs)
        for slot in slots:
            slot.tuned_costs = self.costs  # nothing is measured while other answers are written

    def _share(
        self, loaded: LoadedModel, n_ctx: int, rows: int, interrupts: Sequence[Interrupt]
    ) -> list[LoadedModel | None]:
        """A model once for each slot. A draft model that has no room costs the drafts: None."""
        models = self.engine.models
        if loaded.head:
            models.note("heads draft for one answer at a time: slots go on without them")
            return [None] * len(interrupts)
        try:
            held = n_ctx if loaded is models.target else loaded.window(n_ctx, self.engine.settings.draft_window)
            memory.require(loaded.header, held * len(interrupts), None if loaded.offloaded else host.available_memory())
            passes = SharedPasses(
                loaded.model,
                held,
                rows if loaded is models.target else REVIEWED,
                loaded.threads,
                self.engine.interrupt,
                interrupts,
            )
        except SpecdecError as error:
            if loaded is models.target:
                raise
            models.note(f"the {loaded.role} model is not used: {error}")
            return [None] * len(interrupts)
        self.passes[loaded.role] = passes
        costs = models.timed(loaded, passes.texts[0])
        slots: list[LoadedModel | None] = []
        for text in passes.texts:
            slots.append(slot := replace(loaded))
            slot.use(text, costs, n_ctx)
        return slots

    def _forget(self) -> None:
        for engine in self.engines:
            engine.drafting.forget()

    def _measured(self) -> Costs:
        """What passes cost. They are timed now, if that is not known: later, other answers would be in them."""
        first = self.engines[0]
        text = first.tokenize(_MEASURED_TEXT, raw=True)
        costs = first.costs.of_pair(text) if first.models.draft else Costs(first.costs.verify(text), Curve({1: 1e-6}))
        for passes in self.passes.values():
            passes.texts[0].rewind(0)
        return costs

    def __exit__(self, *_: object) -> None:
        for passes in self.passes.values():
            passes.close()


def _slot(engine: Engine, models: SlotModels, interrupt: Interrupt, load: SharedLoad) -> Engine:
    """An engine with the same weights and settings, and texts of its own."""
    slot = copy.copy(engine)
    slot.models, slot.interrupt, slot.costs = models, interrupt, PairCosts(models)
    slot.drafting = Drafting(models, slot.costs, engine.pair, load)
    slot.drafting.corpus, slot.drafting.translation = engine.drafting.corpus, engine.drafting.translation
    return slot


def require_chains(settings: Settings) -> None:
    """Raise UsageError on settings that slots cannot have."""
    if settings.branches > 1:
        raise UsageError("slots draft chains only", "Leave out --tree and lookahead.")
    if settings.bitwise:
        raise UsageError("slots share passes, so their rounding is not that of one text alone", "Leave out --bitwise.")
