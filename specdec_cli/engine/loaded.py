"""The models of a pair in memory: their contexts, threads, and what their passes cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TypeVar

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.length_policy import LengthPolicy
from specdec_cli.draft_length import LONGEST
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.engine import validation as terms
from specdec_cli.engine.model_pair import Pair
from specdec_cli.engine.pass_costs import PassCosts
from specdec_cli.engine.settings import Settings
from specdec_cli.evaluation.simulator import REVIEWED
from specdec_cli.llama import library
from specdec_cli.llama.context import MAX_SNAPSHOTS, LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.threads import ThreadWatch
from specdec_cli.models import memory
from specdec_cli.models.gguf import Header
from specdec_cli.store import tuning
from specdec_cli.store.tuning import Tuning

_Made = TypeVar("_Made")
_Own = TypeVar("_Own", bound="LoadedPair")


class LoadedPair:
    """The models of a pair in memory, with contexts once `open_contexts` knows how long they must be.

    tune: whether to go by what `specdec tune` found for this pair on this machine.
    """

    def __init__(self, pair: Pair, settings: Settings, interrupt: Interrupt, tune: bool = True) -> None:
        started = perf_counter()
        self.pair = pair
        self.settings = settings
        self.clock: Callable[[], float] = perf_counter
        """What runs are timed by, in seconds."""
        self._interrupt = interrupt
        self._draft_context: LlamaContext | None = None
        self._target_context: LlamaContext | None = None
        self._draft: Model | None = None
        self._small: Model | None = None
        self._small_context: LlamaContext | None = None
        self._pass_costs: dict[str, PassCosts] = {}
        """By what a model is for: target or draft."""
        self._learned: list[CostModel] = []
        """What the answers so far have shown of costs."""
        self._adaptive: dict[object, LengthPolicy] = {}
        self._fixed: dict[object, LengthPolicy] = {}
        self.corpus: Corpus | None = None
        """Other texts for drafters that look into them; whoever runs the pair may put one here."""
        self.notes: tuple[str, ...] = ()
        self._tunes = tune
        tuned = self._tuned = self._find_tuning(pair) if tune else None
        self._threads = settings.threads or (tuned.threads if tuned else library.physical_cores())
        self._threads_draft = settings.threads_draft or (
            tuned.threads_draft if tuned and not settings.threads else self._threads
        )
        layers = tuned.gpu_layers_draft if tuned and settings.gpu_layers_draft == -1 else settings.gpu_layers_draft
        self._fits = (self._threads, self._threads_draft, layers)
        self.target = Model(pair.target_path, settings.gpu_layers, interrupt)
        if pair.draft_path is not None:
            path = pair.draft_path
            self._draft = self._unless_it_fails(lambda: Model(path, layers, interrupt))
        if pair.small_path is not None:
            small_path = pair.small_path
            self._small = self._unless_it_fails(lambda: Model(small_path, layers, interrupt), "second draft model")
        self.load_s = perf_counter() - started
        trained = self.target.n_ctx_train
        if settings.ctx and 0 < trained < settings.ctx:
            self.notes += (f"-c {settings.ctx:,} is more than the {trained:,} tokens that the target was trained on",)

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_contexts(self, prompt_tokens: int, ways: Sequence[Settings] = ()) -> None:
        """Make room for a prompt and its answer, or for what `--ctx` says.

        ways: the settings that will be asked for, if not just the session's own.

        Raises SpecdecError if the prompt is longer than that, memory is short, or the models cannot do what is asked.
        """
        settings, interrupt = self.settings, self._interrupt
        ways = ways or [settings]
        branches, drafted = max(map(terms.branches, ways)), max(map(terms.drafted_branches, ways))
        rows = 1 + max(terms.draft_size(way, LONGEST if self.target.rewinds else MAX_SNAPSHOTS) for way in ways)
        if settings.bitwise:
            rows = max(rows, 1 + LONGEST)
        terms.require_rewinding(settings, self.pair.target_path, self.target.rewinds, ways, terms.branches)
        if self._draft is not None and self.pair.draft_path is not None:
            draft_path, rewinds = self.pair.draft_path, self._draft.rewinds
            terms.require_rewinding(replace(settings, bitwise=False), draft_path, rewinds, ways, terms.drafted_branches)
        needed = prompt_tokens + settings.max_tokens + (rows if branches > 1 else 0) + settings.bitwise
        trained = self.target.n_ctx_train or needed  # 0: the file does not say
        n_ctx = settings.ctx or min(-(-needed // 256) * 256, trained)
        if prompt_tokens > n_ctx - 1:
            longer = f"; the model was trained on {trained:,}" if settings.ctx and n_ctx < trained else ""
            raise SpecdecError(
                f"the prompt has {prompt_tokens:,} tokens, the context holds {n_ctx:,}{longer}",
                "Shorten the prompt." if not longer else "Shorten the prompt or give a larger -c.",
            )
        gpu = library.supports_gpu()  # caches lie where the layers do
        free = None if gpu and settings.gpu_layers != 0 else library.available_memory()
        memory.require(self.pair.target, n_ctx, free)
        self._target_context = LlamaContext(self.target, n_ctx, rows, self._threads, interrupt, min(branches, rows))
        self._watch("target", self._target_context, self.pair.target_path, settings.gpu_layers)
        left = None if free is None else free - memory.cache_bytes(self.pair.target, n_ctx)
        if gpu and settings.gpu_layers_draft != 0:
            left = None
        beyond = n_ctx > trained  # as the user wishes
        self._draft_context = self._open_draft(self._draft, self.pair.draft, n_ctx, beyond, left, drafted)
        if left is not None and self._draft_context is not None and self.pair.draft is not None:
            left -= memory.cache_bytes(self.pair.draft, self._draft_context.n_ctx)
        if self._draft_context is not None and self.pair.draft_path is not None:
            self._watch("draft", self._draft_context, self.pair.draft_path, self._fits[2])
        small = self._open_draft(self._small, self.pair.small, n_ctx, beyond, left, 1, "second draft model")
        self._small_context = small

    def _watch(self, role: str, context: LlamaContext, path: Path, gpu_layers: int) -> None:
        """Read what is known of a context's passes, and go to fewer threads where they wait for each other, unless the
        user chose their number, or the text depends on it.
        """
        costs = self._pass_costs[role] = PassCosts(path, context, gpu_layers, self._note)
        settings = self.settings
        chosen = settings.threads or settings.bitwise or (library.supports_gpu() and gpu_layers != 0)
        if chosen or not self._tunes or (role == "draft" and settings.threads_draft):
            return

        def tell(threads: int, times: float) -> None:
            if role == "target":
                self._threads = threads
            else:
                self._threads_draft = threads
            costs.follow_threads()
            self._adaptive.clear()
            self._learned.clear()
            counted = "1 thread" if threads == 1 else f"{threads} threads"
            self._note(
                f"passes of {path.name} took {times:.0f} times as long as they can, for threads that wait for each "
                f"other on a busy processor: it goes on with {counted} (-t N fixes the number)"
            )

        costs.watch = ThreadWatch(context, costs.expected, tell)

    def show_reading(self, show: Callable[[str, int, int], None] | None) -> None:
        """Let someone see how much of a prompt has been read: what reads it, tokens read, tokens in all."""
        for context, what in ((self._target_context, "prompt"), (self._draft_context, "prompt (draft model)")):
            if context is not None:
                context.on_read = partial(show, what) if show else None

    def _note(self, note: str) -> None:
        self.notes += (note,)

    def _open_draft(
        self,
        model: Model | None,
        header: Header | None,
        n_ctx: int,
        beyond: bool,
        free: int | None,
        width: int,
        what: str = "draft model",
    ) -> LlamaContext | None:
        if model is None or header is None:
            return None
        n_ctx = n_ctx if beyond else min(n_ctx, model.n_ctx_train or n_ctx)

        def opened() -> LlamaContext:
            if free is not None:
                memory.require(header, n_ctx, free)
            rows = max(REVIEWED, width)
            return LlamaContext(model, n_ctx, rows, self._threads_draft, self._interrupt, width)

        return self._unless_it_fails(opened, what)

    def _unless_it_fails(self, make: Callable[[], _Made], what: str = "draft model") -> _Made | None:
        """A part of the draft; if it cannot be had, the others go on without it and the notes say why."""
        try:
            return make()
        except SpecdecError as error:
            self._note(f"the {what} is not used: {error}")
            return None

    def _find_tuning(self, pair: Pair) -> Tuning | None:
        """What `specdec tune` found for this pair on this machine, if it did."""
        if pair.draft_path is None:
            return None
        try:
            found = tuning.load(pair.target_path, pair.draft_path)
        except SpecdecError as error:
            self.notes += (f"what was tuned is not used: {error}",)
            return None
        if found and found.machine == library.machine() and found.gpu_layers == self.settings.gpu_layers:
            return found
        return None

    def use_threads(self, target: int, draft: int) -> None:
        """Compute with so many CPU threads from now on; costs are measured anew."""
        self._threads, self._threads_draft, self._tuned = target, draft, None
        for context, role, threads in zip(self.contexts, ("target", "draft"), (target, draft), strict=True):
            context.set_threads(threads)
            self._pass_costs[role].measure_anew()

    @property
    def n_ctx(self) -> int:
        """Tokens that the target's context holds; 0 before `open_contexts`."""
        return self._target_context.n_ctx if self._target_context else 0

    @property
    def forward_s(self) -> tuple[float, float]:
        """Seconds spent in llama_decode so far, of the target and of the draft."""
        target, draft = self._target_context, self._draft_context
        return (target.decode_s if target else 0.0, draft.decode_s if draft else 0.0)

    @property
    def thread_log(self) -> tuple[tuple[int, int], ...]:
        """The CPU threads of the answer at hand: (tokens in the target's cache, threads of passes beyond these)."""
        return tuple(self._opened.thread_log)

    @property
    def threads(self) -> tuple[int, int]:
        """CPU threads of the target and of the draft model."""
        return self._threads, self._threads_draft

    @property
    def contexts(self) -> tuple[LlamaContext, LlamaContext]:
        """Those of the target and of the draft model, for whoever runs them by hand."""
        if self._draft_context is None:
            raise RuntimeError("there is no draft model")
        return self._opened, self._draft_context

    @property
    def _opened(self) -> LlamaContext:
        if self._target_context is None:
            raise RuntimeError("open_contexts comes first")
        return self._target_context

    def costs(self, text: Sequence[int], budget_s: float | None = None) -> Costs:
        """What forward passes of both models cost here: as tuned, or else as kept, or measured on some text."""
        tuned = self._tuned
        if tuned and (tuned.threads, tuned.threads_draft, tuned.gpu_layers_draft) == self._fits:
            return tuned.costs
        target, draft = self._pass_costs["target"], self._pass_costs["draft"]
        if budget_s is None:
            return Costs(target.verify(text), draft.draft(text))
        return Costs(target.verify(text, budget_s * 0.7), draft.draft(text, budget_s * 0.3))

    def assume(self, costs: Costs) -> None:
        """Be on a machine with these costs, where nothing has been learned yet."""
        self._tuned = None
        for found in self._pass_costs.values():
            found.assume(costs)
        self._adaptive.clear()
        self._learned.clear()

    def agree(self, text: Sequence[int]) -> Agreement | None:
        """Which passes agree bit for bit, if the answer is to keep to them; measured once."""
        if not self.settings.bitwise:
            return None
        costs = self._pass_costs["target"]
        found = costs.agree(text)
        if (limits := costs.limits(found)) and limits not in self.notes:
            self._note(limits)
        return found

    @property
    def agreement(self) -> Agreement | None:
        """Which passes of the target agree bit for bit here, if that is known."""
        return self._pass_costs["target"].agreement

    @property
    def measured_s(self) -> float:
        """Seconds spent on measuring what passes cost."""
        return sum(found.measured_s for found in self._pass_costs.values())

    def opened(self) -> list[tuple[str, Model, Header, LlamaContext]]:
        """The models at work: what each is for, itself, its header and its context."""
        pair = self.pair
        found = [
            ("target", self.target, pair.target, self._target_context),
            ("draft", self._draft, pair.draft, self._draft_context),
            ("small draft", self._small, pair.small, self._small_context),
        ]
        return [
            (role, model, header, context) for role, model, header, context in found if model and header and context
        ]

    def keep_costs(self) -> None:
        """Keep what is known of costs for the next start; the notes say so if that fails."""
        for role, costs in self._pass_costs.items():
            if role == "target" and not self.settings.bitwise:
                for model in self._learned:
                    costs.learn(model.learned())
            costs.keep()

    def close(self) -> None:
        """Keep what was learned of costs; free contexts, then models."""
        self.keep_costs()
        for part in (
            self._small_context,
            self._draft_context,
            self._target_context,
            self._small,
            self._draft,
            self.target,
        ):
            if part is not None:
                part.close()
