"""Slots: sessions that share forward passes and one KV cache per model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import CATCH_UP_ROWS
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.context_plan import ContextPlan, require_chains
from specdec_cli.engine.contexts import ModelContext
from specdec_cli.engine.session import Session
from specdec_cli.gguf import memory
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.shared_context import SharedContext, most_rows
from specdec_cli.weights.pass_costs import PassCosts
from specdec_cli.weights.weights import Weights

_MEASURED_TEXT = "def add(a, b):\n    return a + b\n"
"""The text that passes are timed with, before the first request."""


class Slots:
    """`count` sessions, each with n_ctx tokens of context. interrupt: ends all passes. load: how busy the models are.

    accept: as in `Session`. Raises SpecdecError if memory is short, UsageError on settings that slots don't support.
    """

    def __init__(
        self,
        weights: Weights,
        count: int,
        n_ctx: int,
        load: SharedLoad,
        interrupt: Interrupt,
        accept: str | None = None,
    ) -> None:
        require_chains(weights.settings)
        weights.read_corpus(interrupt)
        self._weights, self.interrupt = weights, interrupt
        settings = replace(weights.settings, ctx=n_ctx)
        plan = ContextPlan.of(settings, [settings], 1, weights.target.model, None)
        # A request may ask for more than a fixed length; longer drafts would take the room of prompts in a pass.
        plan = replace(plan, n_ctx=n_ctx, rows=1 + LONGEST if settings.adapts else max(plan.rows, 1 + LONGEST))
        self.sessions = [Session(weights, accept=accept, settings=settings, load=load) for _ in range(count)]
        first = self.sessions[0]
        first.models.on_threads_changed = self._forget
        self.shared: dict[str, SharedContext] = {}
        """By model role, the target first."""
        self._costs: Costs | None = None
        """Measured before the first request, because measuring overwrites the text of the first slot."""
        costs: dict[str, PassCosts] = {}
        try:
            for model in first.models.all:
                if shared := self._opened(model, n_ctx, plan.rows):
                    self.shared[model.role] = shared
                    costs[model.role] = first.models.timed(model, shared.texts[0])
            for number, session in enumerate(self.sessions):
                parts = {role: (shared.texts[number], costs[role]) for role, shared in self.shared.items()}
                session.models.share(parts, plan)
            self._costs = self._measured()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise
        load.begin(self._costs)
        self._forget()

    def _opened(self, model: ModelContext, n_ctx: int, rows: int) -> SharedContext | None:
        """A model's context, shared by all sessions; None, with a note, for a draft model that has no room."""
        loaded, weights = model.loaded, self._weights
        if loaded.head:  # each session opens its own: heads need little memory
            if loaded.head == "medusa":
                weights.note("Medusa heads draft for only one answer at a time, so they are not used")
            return None
        is_target = loaded is weights.target
        held = n_ctx if is_target else loaded.window(n_ctx, weights.settings.draft_window)
        interrupts = [session.interrupt for session in self.sessions]
        with nullcontext() if is_target else weights.optional(loaded.role):
            rows, free = most_rows(rows, len(interrupts)) if is_target else CATCH_UP_ROWS, host.available_memory()
            memory.require(loaded.header, held * len(interrupts), free, loaded.offloaded, rows, len(interrupts))
            return SharedContext(loaded.model, held, rows, loaded.threads, self.interrupt, interrupts, is_target)
        return None

    def _forget(self) -> None:
        """Begin again with the costs from before the first request."""
        for session in self.sessions:
            session.models.known_costs = self._costs
            session.drafting.forget()

    def _measured(self) -> Costs:
        """The costs of passes. Unknown ones are timed now, because later passes are shared with other answers."""
        first = self.sessions[0]
        text = first.tokenize(_MEASURED_TEXT, raw=True)
        costs = first.costs.of_pair(text) if first.models.draft else Costs(first.costs.verify(text), Curve({1: 1e-6}))
        for shared in self.shared.values():
            shared.texts[0].rewind(0)
        return costs

    def close(self) -> None:
        for session in self.sessions:
            session.drafting.learning.keep()
            session.models.close()
        for shared in self.shared.values():
            shared.close()
