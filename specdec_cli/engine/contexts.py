"""The contexts of a session: a KV cache for each model, its threads, and the costs of its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import CATCH_UP_ROWS, DraftModel
from specdec_cli.decoding.wording import counted
from specdec_cli.drafters.read_ahead import ReadAhead
from specdec_cli.drafters.reduced_draft import ReducedDraft
from specdec_cli.drafters.short_memory import ShortMemory
from specdec_cli.engine.context_plan import ContextPlan, require_chains, require_rewinding
from specdec_cli.gguf import memory
from specdec_cli.gguf.head_files import read_medusa
from specdec_cli.gguf.vocabulary import read_reduced
from specdec_cli.llama import host, library, placing
from specdec_cli.llama.context import Context, LlamaContext
from specdec_cli.llama.head_context import HeadContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.medusa_context import MedusaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.threads import ThreadTuner
from specdec_cli.settings.settings import Settings
from specdec_cli.weights.pass_costs import DRAFT_S, VERIFY_S, PassCosts
from specdec_cli.weights.weights import LoadedModel, Weights


class ModelContext:
    """A model in one session. `use` sets its context and the costs of its passes."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.threads = loaded.threads
        self.context: Context | None = None
        self.kv: LlamaContext | None = None
        """The context with its KV cache: for most models `context` itself, for Medusa heads None."""
        self.costs: PassCosts | None = None
        self.draft_model: DraftModel | None = None
        """For a draft model: the context as a drafter uses it."""

    @property
    def role(self) -> str:
        return self.loaded.role

    @property
    def path(self) -> Path:
        return self.loaded.path

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def open_kv(self) -> LlamaContext:
        if self.kv is None:
            raise RuntimeError("the contexts are opened first")
        return self.kv

    @property
    def open_costs(self) -> PassCosts:
        if self.costs is None:
            raise RuntimeError("the contexts are opened first")
        return self.costs

    def use(self, context: Context, kv: LlamaContext | None, costs: PassCosts) -> None:
        """Set the context. A draft model's keeps only a part of a text that is longer."""
        self.context, self.kv, self.costs = context, kv, costs
        self.draft_model = ShortMemory(context) if isinstance(context, LlamaContext) else context
        if vocabulary := read_reduced(self.loaded.header):
            self.draft_model = ReducedDraft(self.draft_model, vocabulary.ids, vocabulary.reads)

    def close(self) -> None:
        if self.costs is not None:
            self.costs.keep()
        if self.context is not None:
            self.context.close()
        self.context = self.kv = self.costs = self.draft_model = None


class Contexts:
    """The models of a session with their contexts. Contexts open once a prompt's length is known, and later prompts use
    them again. `share` sets contexts that sessions share.
    """

    def __init__(self, weights: Weights, settings: Settings, interrupt: Interrupt) -> None:
        self.notes: list[str] = []
        self.on_threads_changed: Callable[[], None] = lambda: None
        """Called when a model changes its threads, and so the costs of its passes."""
        self._weights, self._settings, self._interrupt = weights, settings, interrupt
        self.target = ModelContext(weights.target)
        self.draft = ModelContext(weights.draft) if weights.draft else None
        self.small = ModelContext(weights.small) if weights.small else None
        self.known_costs, self.tuning = weights.tuned_costs, weights.tuning
        self.plan: ContextPlan | None = None
        """What the open contexts have room for."""
        self.shared = False
        """Whether sessions share the passes."""

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def all(self) -> list[ModelContext]:
        return [model for model in (self.target, self.draft, self.small) if model]

    @property
    def contexts(self) -> tuple[LlamaContext, Context]:
        """Those of the target and the draft model. Both must be open."""
        if self.draft is None or self.draft.context is None:
            raise RuntimeError("there is no draft model")
        return self.target.open_kv, self.draft.context

    @property
    def drafts(self) -> bool:
        """Whether there is a draft model with a context."""
        return self.draft is not None and self.draft.context is not None

    def open(self, prompt_tokens: int, variants: Sequence[Settings]) -> None:
        """Like `Session.open`. Contexts that are large enough stay open and keep their KV caches."""
        target, draft = self.target, self.draft
        plan = ContextPlan.of(self._settings, variants, prompt_tokens, target.model, self.plan)
        if self.shared:
            for variant in variants:
                require_chains(variant)
            return
        for variant in variants:
            if not target.model.rewinds:
                require_rewinding(variant, target.path, variant.branches, variant.bitwise)
            if draft and not (draft.loaded.head or draft.model.rewinds):
                require_rewinding(variant, draft.path, variant.drafted_branches, bitwise=False)
        if self.plan is not None and self.plan.covers(plan):
            return
        roomy = plan.with_room(self.plan, target.model.n_ctx_train)
        try:
            self._open_all(roomy, required=roomy != plan)
        except SpecdecError:
            if roomy == plan:
                raise
            self._open_all(plan)  # try without the extra room

    def share(self, parts: Mapping[str, tuple[LlamaContext, PassCosts]], plan: ContextPlan) -> None:
        """Set contexts that sessions share, by role. A draft model without one doesn't draft."""
        self.shared, self.plan = True, plan
        for model in self.all:
            if model.role in parts:
                kv, costs = parts[model.role]
                model.use(kv, kv, costs)
            elif model.loaded.head and model.loaded.head != "medusa":
                with self._weights.optional(model.role):
                    self._open_head(model, CATCH_UP_ROWS, branches=1)
        self.draft = self.draft if self.drafts else None
        self.small = self.small if self.small and self.small.context else None

    def _open_all(self, plan: ContextPlan, required: bool = False) -> None:
        """Open new contexts. required: also raise SpecdecError if a draft model's can't be opened."""
        self.close()
        shapes = {
            "target": (plan.rows, min(plan.branches, plan.rows)),
            "draft": (max(CATCH_UP_ROWS, plan.drafted_branches), plan.drafted_branches),
            "small draft": (CATCH_UP_ROWS, 1),
        }
        free = host.available_memory()
        for model in self.all:
            loaded = model.loaded
            whole = model is self.target or loaded.head
            n_ctx = plan.n_ctx if whole else loaded.window(plan.n_ctx, self._settings.draft_window)
            with nullcontext() if required or model is self.target else self._weights.optional(loaded.role):
                rows, branches = shapes[loaded.role]
                if loaded.head:
                    self._open_head(model, rows, branches)
                    continue
                needed = memory.require(loaded.header, n_ctx, free, loaded.offloaded, rows)
                kv = LlamaContext.open(loaded.model, n_ctx, rows, model.threads, self._interrupt, branches)
                model.use(kv, kv, self.timed(model, kv))
                overlap = kv.passes.overlaps and self.target.open_kv.passes.overlaps
                if model is self.draft and model.draft_model and kv.rewinds and overlap:
                    model.draft_model = ReadAhead(model.draft_model, kv)
                free = free and free - needed
        self.plan = plan
        self.read_singly()

    def _open_head(self, model: ModelContext, rows: int, branches: int) -> None:
        """Open the context of heads, which draft from the target's hidden rows."""
        loaded, target = model.loaded, self.target.open_kv
        if loaded.head == "medusa":  # uses the target's model and device
            heads, words = read_medusa(loaded.header, loaded.path, loaded.model.n_vocab)
            device = placing.device_of(loaded.placement)
            medusa = MedusaContext(heads, words, device, target, model.threads, branches)
            model.use(medusa, None, self._costs(model, medusa))
        else:
            head = HeadContext(loaded.model, target, rows, model.threads, self._interrupt, branches)
            model.use(head, head.text, self._costs(model, head))

    def _costs(self, model: ModelContext, context: Context) -> PassCosts:
        loaded = model.loaded
        return PassCosts(loaded.path, context, loaded.placement.layers, self.note, loaded.setup)

    def timed(self, model: ModelContext, kv: LlamaContext) -> PassCosts:
        """What a model's passes cost in a context. While the machine is busy it uses fewer threads, unless the user set
        their number or the text depends on it.
        """
        loaded, settings, costs = model.loaded, self._settings, self._costs(model, kv)
        chosen = settings.threads or (model is self.draft and settings.threads_draft)
        fixed = chosen or settings.bitwise or loaded.offloaded or model is self.small
        if fixed or not self._weights.tunes:
            return costs

        def changed(threads: int) -> None:
            model.threads = threads
            costs.follow_threads()
            self.known_costs = None
            self.on_threads_changed()
            self._note_threads()

        costs.thread_tuner = ThreadTuner(kv, costs.expected, changed, loaded.threads)
        return costs

    def _note_threads(self) -> None:
        """Say that the CPU is busy, if it is: one note, whichever model has fewer threads."""
        self.notes = [note for note in self.notes if not note.startswith("CPU busy")]
        if model := next((model for model in self.all if model.threads < model.loaded.threads), None):
            which = "(-t sets it)" if model is self.target else "for the draft model (-td sets it)"
            self.note(f"CPU busy: using {counted(model.threads, 'thread')} {which}")

    def read_singly(self) -> None:
        """Let the draft models read two tokens one by one if that is quicker. In shared passes, sizes change anyway."""
        for model in (self.draft, self.small):
            if model and model.kv and not (self.shared or model.loaded.head):
                model.kv.singly = model.open_costs.singly

    def return_to(self, prompt: Sequence[int], length: int) -> None:
        """Let the target's cache hold the first so many tokens of a prompt and nothing else, if it can: it must hold
        them now, and a recurrent model can only return to nothing.
        """
        kv = self.target.open_kv
        if length == 0 or (kv.rewinds and kv.common(prompt) >= length):
            kv.rewind(length)

    def reuse(self, allowed: bool) -> None:
        """Set whether the models may continue from their KV caches instead of reading a prompt again."""
        for model in self.all:
            if model.kv:
                model.kv.reuses = allowed

    def show_reading(self, show: Callable[[str, int, int], None] | None) -> None:
        """Set the callback for prefill progress: a label, tokens read, total tokens. None: no callback."""
        for model, what in ((self.target, "prompt"), (self.draft, "prompt (draft model)")):
            if model and model.kv:
                model.kv.on_read = partial(show, what) if show else None

    def use_threads(self, target: int, draft: int) -> None:
        """Set the CPU threads of the target and the draft model, and measure the costs again."""
        self.known_costs = self.tuning = None
        for model, threads in ((self.target, target), (self.draft, draft)):
            if model and model.context and model.costs:
                model.threads = threads
                model.context.set_threads(threads)
                model.costs.follow_threads(anew=True)

    def close(self) -> None:
        """Free the contexts, except shared ones."""
        self.plan = None
        for model in reversed(self.all):
            model.close()


class PairCosts:
    """The costs of passes of a session's models. Measuring takes a fraction of a second, once."""

    def __init__(self, models: Contexts) -> None:
        self._models = models

    def of_pair(self, text: Sequence[int], budget_s: float = VERIFY_S + DRAFT_S) -> Costs:
        """The costs of both models' passes: tuned, saved, or measured on some text, in this order."""
        if self._models.known_costs is not None:
            return self._models.known_costs
        if (draft := self._models.draft) is None:
            raise RuntimeError("there is no draft model")
        verify = self._models.target.open_costs.verify(text, budget_s * 0.7)
        of_draft = draft.open_costs.draft(text, budget_s * 0.3)
        self._models.read_singly()
        repeated = self._models.target.open_costs.repeated(text, verify(1))
        return Costs(verify, of_draft, singly=draft.kv is not None and draft.kv.singly, repeated=repeated)

    def verify(self, text: Sequence[int]) -> Curve:
        known = self._models.known_costs
        return known.verify if known else self._models.target.open_costs.verify(text)

    def measure_agreement(self, text: Sequence[int]) -> Agreement:
        """Which passes of the target agree bit for bit. Measured once."""
        return self._models.target.open_costs.measure_agreement(text)

    @property
    def agreement(self) -> Agreement | None:
        """Which passes agree; None if not measured."""
        costs = self._models.target.costs
        return costs.agreement if costs else None

    @property
    def measured_s(self) -> float:
        return sum(model.costs.measured_s for model in self._models.all if model.costs)

    @property
    def two_over_one(self) -> float | None:
        """The time of the target's pass over two tokens, relative to one; None if not measured."""
        known, timed = self._models.known_costs, self._models.target.costs
        points = known.verify.points if known else timed.expected if timed else {}
        return points[2] / points[1] if {1, 2} <= set(points) else None

    def keep(self, learned: Iterable[tuple[str, dict[int, float]]]) -> None:
        """Save the costs for the next start. If that fails, a note says so.

        learned: a model's role, and seconds of its passes over n tokens, as answers have shown them.
        """
        timed = {model.role: model.costs for model in self._models.all if model.costs}
        for role, seconds in learned:
            if role in timed:
                timed[role].learn(role, seconds)
        for passes in timed.values():
            passes.keep()


def memory_of(models: Contexts) -> list[memory.ModelMemory]:
    types, parts = library.repacked_types(), []
    for model in models.all:
        if model.loaded.head and model.path == models.target.path:
            continue  # heads in the target's own file
        if context := model.context:
            needs = memory.footprint(model.loaded.header, context.n_ctx, types, context.max_rows)
            buffers = needs.buffers + needs.vocabulary
            weights = needs.weights + sum(adapter.size for adapter in model.loaded.adapters)
            parts.append(memory.ModelMemory(model.role, weights, needs.repacked, needs.cache, buffers))
    return parts
