"""A pair of models that answers prompts: what every command, and a program, runs a pair with."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding import rules
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import AcceptRule, Event
from specdec_cli.engine import corpus_files
from specdec_cli.engine.answer_bounds import NO_BOUNDS, AnswerBounds
from specdec_cli.engine.config import SamplingParams, Settings, SpeculativeConfig, check_value
from specdec_cli.engine.drafting import Drafting, Progress, read_corpus
from specdec_cli.engine.generation import Generation, GenerationResult
from specdec_cli.engine.loaded_models import LoadedModels
from specdec_cli.engine.model_pair import ModelPair, check_pair
from specdec_cli.engine.pass_costs import PairCosts
from specdec_cli.engine.prompt import Prompt, TokenizedPrompt, tokenize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.target import LlamaTarget


class Engine(AbstractContextManager["Engine"]):
    """A pair in memory. Use it in a `with` block, or call `close`. One answer at a time; several engines may live in
    one process.

    interrupt: what stops a pass in the middle; without one, nothing does, and Ctrl-C is Python's. tune: go by what
    `specdec tune` measured. accept: the acceptance rule that was asked for by name; otherwise a fixed seed chooses
    `coupled`. ways: other settings that will be asked for. pair: what `check_pair` returned for these settings.
    """

    def __init__(
        self,
        settings: Settings,
        interrupt: Interrupt | None = None,
        tune: bool = True,
        accept: str | None = None,
        ways: Sequence[Settings] = (),
        pair: ModelPair | None = None,
    ) -> None:
        reads_corpus = settings.ngram_corpus and any(way.chain.reads_corpus for way in ways or [settings])
        self._corpus_files = corpus_files.find(settings.ngram_corpus) if reads_corpus else []
        started = perf_counter()
        self.settings = settings
        self.pair = pair or check_pair(settings)
        self.interrupt = interrupt or Interrupt()
        self.models = LoadedModels(self.pair, settings, self.interrupt, tune)
        self.costs = PairCosts(self.models)
        self.drafting = Drafting(self.models, self.costs, self.pair)
        self.models.on_threads_changed = self.drafting.forget
        self.clock: Callable[[], float] = perf_counter
        """What answers are timed by, in seconds."""
        self.load_s = perf_counter() - started
        """Seconds that loading took, an index of --ngram-corpus included."""
        self._accept = accept
        self.current: Generation | None = None
        """The answer in the making, or the last one."""
        self._answers = 0
        trained = self.models.target.model.n_ctx_train
        if settings.ctx and 0 < trained < settings.ctx:
            self.models.note(f"-c {settings.ctx:,} is more than the {trained:,} tokens that the target was trained on")

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the pair: a draft model that could not be loaded, costs that are not kept."""
        return (*self.pair.notes, *self.models.notes)

    @property
    def drafts(self) -> bool:
        """Whether the draft model that the settings ask for, if any, is there."""
        return self.models.drafts or not self.settings.chain.needs_model

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> GenerationResult:
        """The answer to a prompt. Arguments and errors are those of `stream`."""
        answer = self.start(prompt, sampling, speculative, system=system, raw=raw)
        for _ in answer:
            pass
        return answer.result

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> Iterator[Event]:
        """The answer to a prompt as it comes: a Prefill for each model, a Step for each pass of the target, one Done.

        prompt: a text, a conversation of {"role", "content"}, or token ids. Text and conversations go through the
        model's chat template, if it has one and not `raw`. What both models have read of the prompt in earlier answers
        is not read again. The stream may be abandoned at any time; the next one ends it.
        Raises UsageError on senseless values, SpecdecError if the prompt is too long or llama.cpp fails.
        """
        return iter(self.start(prompt, sampling, speculative, system=system, raw=raw))

    def start(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        reuse: bool = True,
        watch: Callable[[AcceptRule], AcceptRule] | None = None,
    ) -> Generation:
        """An answer to iterate over, which then has a result. reuse: go by what was read of the prompt before. watch:
        makes another acceptance rule of that of the answer, which may look at what that one sees.

        Passes of other widths round differently, so what a cache holds may differ in the last bits from what reading
        the prompt anew would give. With --bitwise nothing is reused.
        """
        settings, grammar = self.settings_of(sampling, speculative), sampling.grammar if sampling else None
        if grammar is not None:
            grammar.compiled()  # here, for what it may raise
            settings = replace(settings, drafter=drafters.auto_with_grammar(settings.drafter))
        given = sampling.stop if sampling else ()
        stop = (given,) if isinstance(given, str) else given
        if "" in stop:
            raise UsageError("a stop string cannot be empty", "Leave it out, or name the text to stop at.")
        self.read_corpus()
        text = self._tokenize(prompt, system, raw)
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        result = GenerationResult(settings, seed, text.tokens, (*self.pair.notes, *text.notes))
        return Generation(self, result, AnswerBounds(stop, grammar), reuse, watch)

    def tokenize(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """A prompt's tokens; arguments and errors are those of `stream`."""
        return self._tokenize(prompt, system, raw).tokens

    def _tokenize(self, prompt: Prompt, system: str | None, raw: bool) -> TokenizedPrompt:
        stopped = self.interrupt.is_set
        return tokenize(prompt, self.models.target.model, self.pair.target, system, raw, stopped)

    def settings_of(self, sampling: SamplingParams | None, speculative: SpeculativeConfig | None) -> Settings:
        """What an answer goes by. Raises UsageError on senseless values, and on what needs another engine."""
        named = Settings.named(sampling, speculative)
        changes = {name: check_value(name, value) for name, value in named.items()}
        chosen = changes.get("accept") or self._accept or self.settings.accept != "rejection"
        if not chosen and (changes.get("seed") is not None or changes.get("bitwise")):
            changes["accept"] = "coupled"
        settings = replace(self.settings, **changes)
        chain, pair = settings.chain, self.pair
        if chain.needs_model and pair.draft is None:
            raise UsageError("no draft model was loaded", "Name one when the engine is loaded.")
        if chain.needs_small and pair.small is None:
            raise UsageError("no second draft model was loaded", "Name one when the engine is loaded: draft_small.")
        if chain.needs_model and chain.drafts_itself != self.settings.chain.drafts_itself:
            raise UsageError(f"the draft model loaded is not that of {settings.drafter}", "Load another engine for it.")
        if settings.ngram_corpus != self.settings.ngram_corpus:
            raise UsageError("a corpus is read when the engine is loaded", "Give ngram_corpus to load.")
        return settings

    def open(self, prompt_tokens: int, ways: Sequence[Settings] = ()) -> None:
        """Make room for a prompt and its answer, in contexts that can do all that `ways`, or the settings, ask for.

        Raises SpecdecError if the prompt is too long, memory is short, or the models cannot do what is asked.
        """
        self.models.open(prompt_tokens, ways or [self.settings])

    def events(
        self,
        prompt: Sequence[int],
        seed: int,
        bounds: AnswerBounds = NO_BOUNDS,
        settings: Settings | None = None,
        watch: Callable[[AcceptRule], AcceptRule] | None = None,
    ) -> Iterator[Event]:
        """Decode an answer to tokens, with the contexts as they are open."""
        settings = settings or self.settings
        rule = rules.RULES[settings.accept]
        self._answers = mine = self._answers + 1
        target = self.models.target
        sampler = rules.sampler_of(settings.accept, settings.sampling, seed, bounds.constraint(target.model))
        context = target.opened
        if target.costs and target.costs.watch:
            target.costs.watch.on = not settings.bitwise
        agreement = self.costs.agree(prompt) if settings.bitwise else None
        policy = self.drafting.policy(settings, prompt)  # before the drafter: it may find that there is none
        for event in generate(
            prompt,
            LlamaTarget(context, agreement),
            self.drafting.drafter(settings, sampler, seed),
            policy,
            watch(rule) if watch else rule,
            sampler,
            np.random.default_rng(seed),
            TextStream(target.model.piece, bounds.stop),
            Ending(settings.max_tokens, target.model.is_end, self.interrupt.is_set),
            self.clock,
        ):
            yield event
            if self._answers != mine or target.context is not context:
                raise SpecdecError(
                    "another answer has begun on this engine, or it was closed",
                    "Finish a stream first, or load a second engine.",
                )

    def read_corpus(self, progress: Progress = lambda _: None) -> None:
        """Make the index of the texts of --ngram-corpus, or read the one that was kept, once.

        progress: is called with what is being done. Raises UsageError if there is no text, Interrupted on Ctrl-C.
        """
        files, self._corpus_files = self._corpus_files, []
        if files:
            started = perf_counter()
            self.drafting.corpus = read_corpus(self.settings, files, self.models, self.interrupt.is_set, progress)
            self.load_s += perf_counter() - started

    def keep_costs(self) -> None:
        """Keep what is known of costs for the next start; the notes say so if that fails."""
        self.costs.keep(self.drafting.learned_costs())

    def close(self) -> None:
        self.keep_costs()
        self.models.close()
