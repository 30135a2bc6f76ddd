"""The models of a pair in memory: their contexts, threads, and what their passes cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.metrics import ModelMemory
from specdec_cli.decoding.types import REVIEWED
from specdec_cli.engine import tuning
from specdec_cli.engine.config import Settings
from specdec_cli.engine.context_plan import ContextPlan, require_rewinding
from specdec_cli.engine.loaded_model import LoadedModel
from specdec_cli.engine.model_loading import load_head, load_model, require_heads
from specdec_cli.engine.model_pair import ModelPair, setup_of_pair
from specdec_cli.engine.pass_costs import PassCosts
from specdec_cli.engine.tuning import Tuning
from specdec_cli.gguf import memory
from specdec_cli.gguf.head_files import read_medusa
from specdec_cli.gguf.header import Header
from specdec_cli.llama import host, kernels, library, placing, repacking
from specdec_cli.llama.adapter import Adapter
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.heads import head_context
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.medusa_context import MedusaContext
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.threads import ThreadWatch


class LoadedModels:
    """The models of a pair in memory. tune: whether to go by what `specdec tune` measured of them on this machine.

    A draft model that cannot be loaded costs the speculation, not the answer: `notes` says why it is missing.
    """

    def __init__(self, pair: ModelPair, settings: Settings, interrupt: Interrupt, tune: bool = True) -> None:
        self.notes: list[str] = []
        self.on_threads_changed: Callable[[], None] = lambda: None
        """Called when a model goes to other threads, and its passes cost something else."""
        self._settings, self._interrupt, self._tunes = settings, interrupt, tune
        self.tuning = tuned = _find_tuning(pair, settings, self.notes) if tune else None
        threads = settings.threads or (tuned.threads if tuned else host.physical_cores())
        threads_draft = settings.threads_draft or (tuned.threads_draft if tuned and not settings.threads else threads)
        threads, threads_draft = (_limited(count, self.note) for count in (threads, threads_draft))
        layers = tuned.gpu_layers_draft if tuned and settings.gpu_layers_draft == -1 else settings.gpu_layers_draft
        self.tuned_costs: Costs | None = None
        if tuned and (tuned.threads, tuned.threads_draft, tuned.gpu_layers_draft) == (threads, threads_draft, layers):
            self.tuned_costs = tuned.costs
        place, place_draft = settings.placements
        place_draft = replace(place_draft, layers=layers)
        place_head = replace(place, servers=())
        for each in (place, place_draft):
            placing.require_possible(each)
        head, inside = settings.chain.head, pair.draft_path == pair.target_path
        usable = not head
        if head == "medusa":  # of which llama.cpp computes nothing but the target's rows
            usable = True
        elif head and pair.draft_path:
            with self._optional("draft"):
                if inside and place.is_remote:
                    what = "next-token layers of the target's own file go with it to the servers"
                    raise SpecdecError(what, "Take another draft: -md, or --drafter ngram.")
                require_heads(pair.target_path, pair.draft_path, interrupt)
                usable = True
        with_heads = usable and bool(head) and inside
        model = load_model(pair.target_path, place, interrupt, pair.adapters, with_heads, pair.target)
        self.target = LoadedModel("target", pair.target_path, pair.target, model, threads, place, pair.adapters)
        self.draft: LoadedModel | None = None
        if head and inside and usable:
            self.draft = replace(self.target, role="draft", threads=threads_draft, head=head)
        elif head == "medusa" and pair.draft_path and pair.draft:  # its file is read as a context is opened
            self.draft = LoadedModel("draft", pair.draft_path, pair.draft, model, threads_draft, place_head, head=head)
        elif usable:
            adapters = pair.draft_adapters
            self.draft = self._load("draft", pair.draft_path, pair.draft, threads_draft, place_draft, adapters, head)
        self.small = self._load("small draft", pair.small_path, pair.small, threads_draft, place_draft)
        if (kernels_here := kernels.verdict()).fault:
            self.note(str(kernels_here))
        self.plan: ContextPlan | None = None
        """For what the contexts have room."""
        if unused := _unused_layers(settings, has_draft=self.draft is not None):
            self.note(unused)

    def _load(
        self,
        role: str,
        path: Path | None,
        header: Header | None,
        threads: int,
        placement: Placement,
        adapters: tuple[Adapter, ...] = (),
        head: str = "",
    ) -> LoadedModel | None:
        if path and header:
            with self._optional(role):
                arguments = path, placing.whole(placement), self._interrupt, adapters
                model = load_head(*arguments, header) if head else load_model(*arguments, header=header)
                return LoadedModel(role, path, header, model, threads, placement, adapters, head)
        return None

    @contextmanager
    def _optional(self, role: str) -> Iterator[None]:
        """Of a part of the draft: if it cannot be had, the others go on without it and the notes say why."""
        try:
            yield
        except SpecdecError as error:
            self.note(f"the {'second ' if role == 'small draft' else ''}draft model is not used: {error}")

    def note(self, text: str) -> None:
        """Let the user know, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def all(self) -> list[LoadedModel]:
        return [loaded for loaded in (self.target, self.draft, self.small) if loaded]

    @property
    def contexts(self) -> tuple[LlamaContext, LlamaContext]:
        """Of the target and of the draft model, which must be there."""
        if self.draft is None:
            raise RuntimeError("there is no draft model")
        return self.target.opened, self.draft.opened

    @property
    def threads(self) -> tuple[int, int]:
        """CPU threads of the target and of the draft model, or of the target twice."""
        return self.target.threads, (self.draft or self.target).threads

    @property
    def drafts(self) -> bool:
        """Whether there is a draft model with a context."""
        return self.draft is not None and self.draft.context is not None

    def open(self, prompt_tokens: int, ways: Sequence[Settings]) -> None:
        """As `Engine.open`. Contexts that have the room already stay as they are, with what they have read."""
        plan = ContextPlan.of(self._settings, ways, prompt_tokens, self.target.model, self.plan)
        for way in ways:
            if not self.target.model.rewinds:
                require_rewinding(way, self.target.path, way.branches, way.bitwise)
            if self.draft and not (self.draft.head or self.draft.model.rewinds):
                require_rewinding(way, self.draft.path, way.drafted_branches, bitwise=False)
        if self.plan is not None and self.plan.covers(plan):
            return
        roomy = plan.with_room(self.plan, self.target.model.n_ctx_train)
        try:
            self._open_all(roomy, required=roomy != plan)
        except SpecdecError:
            if roomy == plan:
                raise
            self._open_all(plan)  # what is needed may fit where more does not

    def _open_all(self, plan: ContextPlan, required: bool = False) -> None:
        """Make the contexts anew. required: raise SpecdecError also if a draft model's cannot be had."""
        self.close_contexts()
        shapes = {
            "target": (plan.rows, min(plan.branches, plan.rows)),
            "draft": (max(REVIEWED, plan.drafted_branches), plan.drafted_branches),
            "small draft": (REVIEWED, 1),
        }
        free = host.available_memory()
        for loaded in self.all:
            whole = loaded is self.target or loaded.head
            n_ctx = plan.n_ctx if whole else loaded.window(plan.n_ctx, self._settings.draft_window)
            with nullcontext() if required or loaded is self.target else self._optional(loaded.role):
                rows, branches = shapes[loaded.role]
                if loaded.head:
                    opened, count, model = self.target.opened, loaded.threads, self.target.model
                    context: LlamaContext = (
                        medusa_context(loaded, opened, branches, self._interrupt)
                        if loaded.head == "medusa"
                        else head_context(loaded.model, model, n_ctx, rows, count, self._interrupt, opened, branches)
                    )
                    loaded.use(context, self.timed(loaded, context), plan.n_ctx)
                    continue
                memory.require(loaded.header, n_ctx, None if loaded.offloaded else free)  # its cache is there, too
                context = LlamaContext(loaded.model, n_ctx, rows, loaded.threads, self._interrupt, branches)
                loaded.use(context, self.timed(loaded, context), plan.n_ctx)
                if free is not None and not loaded.offloaded:
                    free -= memory.cache_bytes(loaded.header, n_ctx)
        self.plan = plan

    def timed(self, loaded: LoadedModel, context: LlamaContext) -> PassCosts:
        """What a model's passes cost in a context, which goes to fewer threads where they wait for each other, unless
        the user chose their number, or the text depends on it.
        """
        costs = PassCosts(loaded.path, context, loaded.placement.layers, self.note, loaded.setup)
        settings = self._settings
        chosen = settings.threads or (loaded is self.draft and settings.threads_draft)
        if chosen or settings.bitwise or loaded.head or loaded.offloaded or not self._tunes or loaded is self.small:
            return costs

        def changed(threads: int, times: float) -> None:
            loaded.threads = threads
            costs.follow_threads()
            self.tuned_costs = None
            self.on_threads_changed()
            counted = "1 thread" if threads == 1 else f"{threads} threads"
            self.note(
                f"passes of {loaded.path.name} took {times:.0f} times as long as they can, for threads that wait for "
                f"each other on a busy processor: it goes on with {counted} (-t N fixes the number)"
            )

        costs.watch = ThreadWatch(context, costs.expected, changed)
        return costs

    def show_reading(self, show: Callable[[str, int, int], None] | None) -> None:
        """Report how much of a prompt has been read: what reads it, tokens read, tokens in all. None: no more."""
        for loaded, what in ((self.target, "prompt"), (self.draft, "prompt (draft model)")):
            if loaded and loaded.context:
                loaded.context.on_read = partial(show, what) if show else None

    def use_threads(self, target: int, draft: int) -> None:
        """Compute with so many CPU threads from now on; costs are measured anew."""
        self.tuned_costs = self.tuning = None
        for loaded, threads in ((self.target, target), (self.draft, draft)):
            if loaded and loaded.context and loaded.costs:
                loaded.threads = threads
                loaded.context.set_threads(threads)
                loaded.costs.follow_threads(anew=True)

    def close_contexts(self) -> None:
        self.plan = None
        for loaded in reversed(self.all):
            loaded.close_context()

    def close(self) -> None:
        """Free contexts, then weights."""
        self.close_contexts()
        for loaded in reversed(self.all):
            loaded.model.close()


def _limited(threads: int, note: Callable[[str], None]) -> int:
    """Threads that the machine can run: more wait for each other, and thousands end the process."""
    most = host.processors()
    if threads > most:
        note(f"{threads:,} threads are more than this machine can run at once: it computes with {most}")
    return min(threads, most)


def _unused_layers(settings: Settings, has_draft: bool) -> str:
    """A note that no layer goes to a GPU though some were asked for; empty if all is as asked."""
    if settings.rpc and settings.gpu_layers == 0:
        return "--rpc does nothing with -ngl 0: no layer leaves this machine"
    asked = {"-ngl": 0 if settings.rpc else settings.gpu_layers, "-ngld": settings.gpu_layers_draft if has_draft else 0}
    flags = [f"{flag} {layers}" for flag, layers in asked.items() if layers > 0]
    if not flags or library.supports_gpu():
        return ""
    verb = "does" if len(flags) == 1 else "do"
    return f"{' and '.join(flags)} {verb} nothing: this build of llama.cpp can use no GPU (specdec doctor says more)"


def medusa_context(loaded: LoadedModel, target: LlamaContext, branches: int, interrupt: Interrupt) -> MedusaContext:
    """A context of Medusa heads, whose file is read now. loaded: with the target's model, and where that lies."""
    file = read_medusa(loaded.header, loaded.path, loaded.model.n_vocab)
    device = placing.device_of(loaded.placement)
    return MedusaContext(file.heads, file.words, device, loaded.model, loaded.threads, interrupt, target, branches)


def _find_tuning(pair: ModelPair, settings: Settings, notes: list[str]) -> Tuning | None:
    """What `specdec tune` measured for this pair on this machine, if it did."""
    try:
        setup = setup_of_pair(pair, settings)
        tuned = tuning.load(pair.target_path, pair.draft_path, setup) if pair.draft_path else None
    except SpecdecError as error:
        notes.append(f"what was tuned is not used: {error}")
        return None
    return tuned if tuned and (tuned.machine, tuned.gpu_layers) == (library.machine(), settings.gpu_layers) else None


def memory_of(models: LoadedModels) -> list[ModelMemory]:
    """What the models take with the contexts that are open."""
    types, parts = repacking.repacked_types(), []
    for loaded in models.all:
        if loaded.head and loaded.path == models.target.path:
            continue  # heads in the target's own file
        if context := loaded.context:
            needs = memory.footprint(loaded.header, context.n_ctx, types, context.max_rows)
            buffers = needs.buffers + needs.vocabulary
            weights = needs.weights + sum(adapter.size for adapter in loaded.adapters)
            parts.append(ModelMemory(loaded.role, weights, needs.repacked, needs.cache, buffers))
    return parts
