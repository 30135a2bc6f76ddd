"""A pair of models, checked, loaded and ready to run prompts. What `run` uses, and whatever else runs a pair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TypeVar

import numpy as np

from specdec_cli import drafters
from specdec_cli.cli import terms
from specdec_cli.cli.costing import PassCosts
from specdec_cli.cli.pair import Pair
from specdec_cli.cli.settings import AUTO, Settings
from specdec_cli.cli.terms import fixed_length, sampling_of
from specdec_cli.decoding import rules
from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.calibration import Calibration
from specdec_cli.decoding.chained import ChainedLength
from specdec_cli.decoding.costs import CostModel, Costs, Curve
from specdec_cli.decoding.divergence import Choice, Divergence, Transcript, explain, first_difference
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.known import KnownLength
from specdec_cli.decoding.length import LONGEST, AutoLength, FixedLength
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.simulation import REVIEWED
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import Drafter, Event, LengthPolicy
from specdec_cli.decoding.wholesale import WholesaleLength
from specdec_cli.drafters.chain import ChainDrafter
from specdec_cli.drafters.corpus import Corpus
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.drafters.parts import Parts
from specdec_cli.llama import library
from specdec_cli.llama.context import MAX_SNAPSHOTS, LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.llama.threads import ThreadWatch
from specdec_cli.models import memory, tuning
from specdec_cli.models.gguf import Header
from specdec_cli.models.tuning import Tuning

_Made = TypeVar("_Made")


class Session:
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
        self._adaptive: dict[object, AutoLength | KnownLength] = {}
        self._fixed: dict[object, FixedLength] = {}
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

    def __enter__(self) -> Session:
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
        self._require_rewinding(ways)
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

    def _require_rewinding(self, ways: Sequence[Settings]) -> None:
        """Raise UsageError if a model's memory is recurrent: it is one state, and cannot be on several branches."""
        if self.settings.bitwise and not self.target.rewinds:
            raise UsageError(
                f"--bitwise cannot be used with {self.pair.target_path.name}: its memory is recurrent, and reads what "
                "was accepted again in other passes",
                "Leave it out; --drafter none is the target alone.",
            )
        for model, path, branches in (
            (self.target, self.pair.target_path, terms.branches),
            (self._draft, self.pair.draft_path, terms.drafted_branches),
        ):
            branching = [way for way in ways if branches(way) > 1]
            if branching and model is not None and path is not None and not model.rewinds:
                lookahead = branches is terms.branches and terms.lookahead_size(branching[0])
                what = "lookahead" if lookahead else f"--tree {branching[0].tree}"
                raise UsageError(
                    f"{what} cannot be used with {path.name}: its memory is recurrent, and cannot branch",
                    "Chains work: the drafters model and ngram without --tree.",
                )

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
    def drafts(self) -> bool:
        """Whether the draft model that the settings ask for, if any, is there."""
        return self._draft_context is not None or not drafters.needs_model(self.settings.drafter)

    @property
    def n_ctx(self) -> int:
        """Tokens that the target's context holds; 0 before `open_contexts`."""
        return self._target_context.n_ctx if self._target_context else 0

    @property
    def forward_s(self) -> tuple[float, float]:
        """Seconds spent in llama_decode so far, of the target and of the draft."""
        target, draft = self._target_context, self._draft_context
        return (target.decode_s if target else 0.0, draft.decode_s if draft else 0.0)

    def events(
        self, prompt: Sequence[int], seed: int, stop: Sequence[str] = (), settings: Settings | None = None
    ) -> Iterator[Event]:
        """Decode an answer with the session's settings, or with others that need no other models or contexts."""
        settings = settings or self.settings
        sampler = rules.sampler_of(settings.accept, sampling_of(settings), seed)
        policy = self._length_policy(settings, prompt)
        return generate(
            prompt,
            LlamaTarget(self._opened, self.agree(prompt)),
            self._drafter(sampler, seed, settings),
            policy,
            rules.RULES[settings.accept],
            sampler,
            np.random.default_rng(seed),
            TextStream(self.target.piece, stop),
            Ending(settings.max_tokens, self.target.is_end, self._interrupt.is_set),
            self.clock,
        )

    def divergence(
        self, prompt: Sequence[int], own: Transcript, mine: Transcript, seed: int, settings: Settings
    ) -> Divergence | None:
        """Where an answer leaves the target's own, and the proof that this is rounding, or that it is not; None if it
        does not. For reproducible rules, and greedily for all. It takes the passes of both answers up to that place.
        """
        position = first_difference(mine.tokens, own.tokens)
        if position is None:
            return None
        text = [*prompt, *own.tokens[:position]]
        sampler = rules.sampler_of(settings.accept, sampling_of(settings), seed)
        sampler.watch(text)
        choice = Choice(sampler, position, len(text), seed)
        context, threads, watch = self._opened, self._opened.threads, self._opened.on_pass

        def again(transcript: Transcript) -> LlamaTarget:
            """A target that computes with the threads of an answer, and changes them where that did."""

            def change(_tokens: int, _seconds: float) -> None:
                for length, count in transcript.threads[1:]:
                    if length == context.length:
                        context.set_threads(count)

            context.on_pass = change
            context.set_threads(transcript.threads[0][1] if transcript.threads else threads)
            return LlamaTarget(context, self.agreement if settings.bitwise else None)

        try:
            experts = bool(self.pair.target.setting("expert_count"))
            found = explain(prompt, own, mine, position, choice, again, experts)
        finally:
            context.on_pass = watch
            context.set_threads(threads)
        if settings.bitwise and not found.bug:
            found = replace(found, bug=f"passes that agreed bit for bit when measured do not here: {found}")
        return found

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

    def _length_policy(self, settings: Settings, prompt: Sequence[int]) -> LengthPolicy:
        """What decides the draft length. One that adapts serves all runs with the same sampling, and remembers."""
        if settings.draft_tokens != AUTO or settings.drafter == "none":
            wanted = fixed_length(settings)
            return self._fixed.setdefault((wanted, sampling_of(settings), settings.tree), wanted)
        found = {name: self._auto(name, settings, prompt) for name in self._usable(settings)}
        policies = {name: policy for name, policy in found.items() if policy}
        if not policies or len(policies) < len(found):
            return fixed_length(settings)
        return ChainedLength(policies) if len(policies) > 1 else next(iter(policies.values()))

    def _usable(self, settings: Settings) -> list[str]:
        """The drafters asked for, without those whose draft model could not be had; the notes say why."""
        names = drafters.split(settings.drafter)
        if self._small_context is None:
            names = [name.removesuffix("<small") for name in names]
        return [name for name in names if self._draft_context is not None or not drafters.kind(name).needs_model]

    def _auto(self, name: str, settings: Settings, prompt: Sequence[int]) -> AutoLength | KnownLength | None:
        """The adaptive length of one drafter with these settings; None if its costs cannot be measured."""
        kind = drafters.kind(name)
        shape = (settings.drafter, settings.draft_min_p, settings.tree, settings.lookahead)
        key = (name, shape, sampling_of(settings), settings.accept)
        if key not in self._adaptive:
            measured = self._unless_it_fails(lambda: self._costs_of(kind, prompt))
            if measured is None:  # without costs there is no adapting, and the draft model does not work
                self._draft_context = None
                return None
            longest = terms.lookahead_size(settings) if name == "lookahead" else LONGEST
            costs = CostModel(measured, min(self._opened.max_rows - 1, longest))
            if settings.tree == 1 and name != "lookahead":  # the passes of trees take longer
                self._learned.append(costs)
            greedy, min_p = settings.temp == 0, settings.draft_min_p
            self._adaptive[key] = (
                AutoLength(costs, self._calibration(settings), min_p, greedy)
                if kind.needs_model
                else (WholesaleLength if name == "lookahead" else KnownLength)(costs, min_p)
            )
        return self._adaptive[key]

    def _calibration(self, settings: Settings) -> Calibration:
        """What the draft model's confidence is worth, as far as it is known before the first answer."""
        greedy = settings.temp == 0
        known = self._tuned.calibrations if self._tuned else {}
        found = known.get(tuning.kind_of(greedy, settings.accept))
        if found is None and settings.accept == "coupled":  # which accepts nearly as much
            found = known.get(tuning.kind_of(greedy, "rejection"))
        return copy.deepcopy(found) if found else Calibration.prior(greedy)

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

    def _costs_of(self, kind: type[drafters.Kind], text: Sequence[int]) -> Costs:
        """What drafting with a drafter costs, and verifying what it drafts, in the passes that `--bitwise` keeps to."""
        if kind.needs_model:
            costs = self.costs(text)
        else:
            costs = Costs(self._pass_costs["target"].verify(text), Curve({1: kind.token_s}))
        agreement = self.agree(text)
        return replace(costs, verify=agreement.cost(costs.verify, LONGEST + 1)) if agreement else costs

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

    def _drafter(self, sampler: StandardSampler, seed: int, settings: Settings) -> Drafter:
        draws = settings.accept != "match"
        made = []
        for i, name in enumerate(self._usable(settings), 1):
            rng = np.random.default_rng((seed, i))  # apart from the target's, which must not depend on the draft
            models = (self._draft_context, self._small_context)
            parts = Parts(
                models[0],
                self.pair.n_shared,
                sampler,
                draws,
                rng,
                settings.tree,
                models[1],
                terms.lookahead_of(settings),
                self.corpus,
            )
            made.append(drafters.create(name, parts))
        return ChainDrafter(made) if len(made) > 1 else made[0] if made else NoDrafter()

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
