"""A session: one text with its KV caches, drafter and length policy, and the answers to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from statistics import harmonic_mean
from threading import Lock, get_ident
from time import perf_counter
from typing import Any

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding import rules
from specdec_cli.decoding.divergence import Choice, Divergence, Transcript, explain, first_difference
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.logprobs import with_logprobs
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import ratio_of_sums
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import AcceptRule, Event
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.baseline import BaselineResult, paired_speeds
from specdec_cli.engine.context_plan import longest_draft
from specdec_cli.engine.contexts import Contexts, PairCosts
from specdec_cli.engine.drafting import Drafting
from specdec_cli.engine.generation_result import GenerationResult, conditions
from specdec_cli.json_store import to_json as record_to_json
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.settings.options import AUTO, SamplingParams, SpeculativeConfig, given_in
from specdec_cli.settings.settings import Settings, check_value
from specdec_cli.weights.model_pair import ModelPair
from specdec_cli.weights.prompt import Prompt
from specdec_cli.weights.weights import Weights

_UNEVEN = 4.0
"""The unevenness of pass times above which a note is shown. A growing context alone stays below it."""


class Session(AbstractContextManager["Session"]):
    """Generates answers with a pair's weights, one at a time. A prompt continues from the KV cache as far as it begins
    like the last text. Several sessions, in several threads, may use the same weights.

    interrupt: stops a forward pass in the middle; without one, a pass runs to its end. accept: the acceptance rule that
    the user named; if None, a fixed seed selects `coupled`. settings: the weights' own by default. load: how busy the
    models are, if other sessions share their passes.
    """

    def __init__(
        self,
        weights: Weights,
        interrupt: Interrupt | None = None,
        accept: str | None = None,
        settings: Settings | None = None,
        load: SharedLoad | None = None,
    ) -> None:
        self.weights, self.settings = weights, settings or weights.settings
        self.interrupt = interrupt or Interrupt()
        self.models = Contexts(weights, self.settings, self.interrupt)
        self.costs = PairCosts(self.models)
        self.drafting = Drafting(weights, self.models, self.costs, load)
        self.models.on_threads_changed = self.drafting.forget
        self.clock: Callable[[], float] = perf_counter
        """The clock that times answers, in seconds."""
        self._accept = accept
        self.in_use = _SessionLock()
        self.on_close: Callable[[Session], None] = lambda _session: None
        self.n_answers = 0
        """How many answers have started. Starting one, or closing the session, ends the one before it."""
        self.latest: Generation | None = None
        """The answer that began last, not counting the target's own in a comparison: the cache still holds what this
        one began with."""

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pair(self) -> ModelPair:
        return self.weights.pair

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the pair, such as a draft model that failed to load."""
        return (*self.pair.notes, *self.weights.notes, *self.models.notes)

    @property
    def drafts(self) -> bool:
        """Whether drafting is possible: any draft model in the settings is loaded."""
        return self.models.drafts or not self.settings.cascade.needs_model

    def require_drafts(self, fix: str) -> None:
        """Raise SpecdecError with the note that says why, if drafting isn't possible. For open sessions."""
        if not self.drafts:
            why = [note for note in self.notes if "draft model is not used" in note]
            raise SpecdecError(next(reversed(why or self.notes), "no draft model is open"), fix)

    def start(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        reuse: bool = True,
    ) -> Generation:
        """An answer to iterate over; its result is complete after that. reuse: continue from the KV cache.

        Passes of different widths round differently, so a reused KV cache may differ in the last bits from one that is
        computed anew. With --bitwise nothing is reused.
        """
        settings = self.settings_of(sampling, speculative)
        if settings.grammar is not None:
            settings.grammar.compiled()  # may raise, so compile it before the answer starts
            settings = replace(settings, drafter=drafters.auto_with_grammar(settings.drafter))
        self.weights.read_corpus(self.interrupt)
        text = self.weights.tokenize(prompt, system, raw, self.interrupt.is_set, settings.template_variables)
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        result = GenerationResult(settings, seed, text.tokens, (*self.pair.notes, *text.notes))
        return Generation(self, result, reuse)

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> GenerationResult:
        """The answer to a prompt. Takes the arguments and raises the errors of `Engine.stream`."""
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
    ) -> Generator[Event, None, None]:
        """The events of an answer, like `Engine.stream`. Starting another answer ends the stream."""
        return iter(self.start(prompt, sampling, speculative, system=system, raw=raw))

    def tokenize(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """A prompt's tokens. Takes the arguments and raises the errors of `Engine.stream`."""
        return self.weights.tokenize(prompt, system, raw, self.interrupt.is_set).tokens

    def settings_of(self, sampling: SamplingParams | None, speculative: SpeculativeConfig | None) -> Settings:
        """The settings of an answer. Raises UsageError on invalid values and on changes that need another engine,
        IncompatiblePair on changes that need a draft model with the target's tokenizer.
        """
        changes = {name: check_value(name, value) for name, value in given_in(sampling, speculative).items()}
        chosen = changes.get("accept") or self._accept or self.settings.accept != "rejection"
        if not chosen and (changes.get("seed") is not None or changes.get("bitwise")):
            changes["accept"] = "coupled"
        loaded, pair = self.settings.cascade, self.pair
        if changes.get("drafter") == AUTO:
            changes["drafter"] = loaded.auto(pair.draft is not None)
        settings = replace(self.settings, **changes)
        cascade = settings.cascade
        if cascade.needs_model and pair.draft is None:
            raise UsageError("no draft model is loaded", "Name one when you start: --draft.")
        if cascade.needs_small and pair.small is None:
            raise UsageError("no second draft model is loaded", "Name it when you start: --draft-small.")
        if cascade.needs_model and (cascade.drafts_itself, cascade.head) != (loaded.drafts_itself, loaded.head):
            raise UsageError(f"the loaded draft is not for {settings.drafter}", "Name one when you start: --draft.")
        pair.require_translation(settings)
        if settings.ngram_corpus != self.settings.ngram_corpus:
            raise UsageError("the corpus can't change once it is read", "Name it when you start: --ngram-corpus.")
        return settings

    def open(self, prompt_tokens: int, variants: Sequence[Settings] = ()) -> None:
        """Open contexts with room for a prompt and its answer, for all variants of the settings in `variants`.

        Raises SpecdecError if the prompt is too long, memory is short, or the models can't do what the settings need.
        """
        with self.in_use:
            self.models.open(prompt_tokens, variants or [self.settings])

    def events(
        self,
        prompt: Sequence[int],
        seed: int,
        settings: Settings | None = None,
        written: int = 0,
    ) -> Iterator[Event]:
        """Decode an answer to a prompt's tokens in the open contexts. written: how many of the prompt's last tokens are
        a part of the answer that was decoded before.
        """
        settings = settings or self.settings
        target = self.models.target
        with self.in_use:
            self.n_answers = number = self.n_answers + 1
            sampler = rules.sampler_of(settings.accept, settings, seed, settings.constraint(target.model, written))
            context = target.open_kv
            if target.costs and target.costs.thread_tuner:
                target.costs.thread_tuner.on = not settings.bitwise
            agreement = self.costs.measure_agreement(prompt) if settings.bitwise else None
            policy = self.drafting.policy(settings, prompt)  # before the drafter, because this may disable drafting
            answer = generate(
                prompt,
                LlamaTarget(context, agreement, longest_draft(settings, target.model.rewinds)),
                self.drafting.drafter(settings, sampler, seed, written),
                policy,
                self._rule(settings),
                sampler,
                np.random.default_rng(seed),
                TextStream(target.model.piece, settings.stop),
                Ending(settings.max_tokens, target.model.is_end, self.interrupt.is_set),
                self.clock,
            )
        while True:
            with self.in_use:
                if self.n_answers != number or target.kv is not context:
                    raise _was_ended()
                event = next(answer, None)
            if event is None:
                return
            yield event

    def _rule(self, settings: Settings) -> AcceptRule:
        rule = rules.RULES[settings.accept]
        return rule if settings.logprobs is None else with_logprobs(rule, settings.logprobs)

    def paired_speeds(
        self, prompt: Sequence[int], answer: Sequence[int], seed: int, settings: Settings
    ) -> list[tuple[float, float]]:
        """The speeds of an answer with these tokens, with drafts and alone; see `baseline.paired_speeds`."""

        def write(start: int, part: Settings) -> Metrics:
            return Metrics.of(self.events([*prompt, *answer[:start]], seed, part, written=start))

        with reusing(self):
            return paired_speeds(write, answer, settings)

    def divergence(
        self,
        prompt: Sequence[int],
        alone: Transcript,
        answer: Transcript,
        seed: int,
        settings: Settings,
        reused: int = 0,
    ) -> Divergence | None:
        """The first token where an answer differs from the target's own, and the proof that rounding or a bug is the
        cause. None if the answers are equal.

        alone, answer: the target's own answer and the other one, with the same seed. reused: how many tokens of the
        prompt were in the cache when both answers began; it must still hold what it held then. It works for acceptance
        rules that reproduce the target's text, and for all rules at temperature 0. It repeats the passes of both
        answers up to that token.
        """
        with self.in_use:
            position = first_difference(alone.tokens, answer.tokens)
            if position is None:
                return None
            target, context = self.models.target, self.models.target.open_kv
            text = [*prompt, *alone.tokens[:position]]
            sampler = rules.sampler_of(settings.accept, settings, seed, settings.constraint(target.model))
            sampler.follow(text, len(prompt))
            choice = Choice(sampler, position, len(text), seed)
            agreement = self.costs.agreement if settings.bitwise else None
            threads, callback, reuses = context.threads, context.passes.on_pass, context.reuses

            def again(transcript: Transcript) -> LlamaTarget:
                """A target that starts as the answer did, and changes threads where the answer did."""

                def change(_tokens: int, _seconds: float) -> None:
                    for length, count in transcript.threads[1:]:
                        if length == context.length:
                            context.set_threads(count)

                context.passes.on_pass = change
                context.set_threads(transcript.threads[0][1] if transcript.threads else threads)
                context.rewind(reused)
                context.reuses = reused > 0
                return LlamaTarget(context, agreement)

            experts = bool(target.loaded.header.setting("expert_count"))
            try:
                difference = explain(prompt, alone, answer, position, choice, again, experts)
            finally:
                context.passes.on_pass, context.reuses = callback, reuses
                context.set_threads(threads)
        if settings.bitwise and not difference.bug:
            return replace(difference, bug=f"passes that agreed bit for bit when measured differ here: {difference}")
        return difference

    def keep_costs(self) -> None:
        """Save the measured costs for the next start. If that fails, a note says so."""
        self.costs.keep(self.drafting.learned_costs())

    def close(self) -> None:
        """Save the measured costs and what drafting has shown, and free the contexts. An answer in another thread ends
        with an error after its current step. Raises SpecdecError within a step of the same thread.
        """
        lock = self.in_use.begin_closing()
        self.n_answers += 1
        with lock:
            self.keep_costs()
            self.drafting.learning.keep()
            self.models.close()
        self.on_close(self)


def _was_ended() -> SpecdecError:
    fix = "Finish a stream before you start the next, or use a second session."
    return SpecdecError("the session was closed, or another answer has started on it", fix)


class _SessionLock:
    """Held by the thread that computes in a session. Another one gets an error instead of waiting."""

    def __init__(self) -> None:
        self._lock, self._thread, self._closing = Lock(), 0, False

    def __enter__(self) -> None:
        free = self._lock.acquire(blocking=False)
        if self._closing:
            if free:
                self._lock.release()
            raise _was_ended()
        if not free:
            raise SpecdecError("another thread uses this session", "Open one for each thread: engine.session().")
        self._thread = get_ident()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._thread = 0
        self._lock.release()
        if self._closing and isinstance(error, Interrupted):
            raise _was_ended() from None

    def require_other_thread(self) -> None:
        """Raise SpecdecError if this thread computes: closing the session would wait for itself."""
        if self._thread == get_ident():
            what = "a session can't be closed, or wait for a list of prompts, while it computes"
            raise SpecdecError(what, "Do that after the step.")

    def begin_closing(self) -> Lock:
        """Refuse further steps. Returns the lock, which is free after the current one. Raises the error of
        `require_other_thread`.
        """
        self.require_other_thread()
        self._closing = True
        return self._lock


class Generation:
    """An answer to iterate over. Afterwards `result` is complete; after an error it holds what was generated so far."""

    def __init__(
        self,
        session: Session,
        result: GenerationResult,
        reuse: bool,
        like: Generation | None = None,
    ) -> None:
        self.result = result
        self._session, self._like = session, like
        self._reuse = reuse and not result.settings.bitwise

    def prepare(self) -> None:
        """Open the contexts, and measure which passes agree for --bitwise. Iterating does this if you don't."""
        session, settings = self._session, self.result.settings
        session.open(len(self.result.prompt), [settings])
        if settings.bitwise:
            with session.in_use:
                session.costs.measure_agreement(self.result.prompt)

    def __iter__(self) -> Generator[Event, None, None]:
        session, result = self._session, self.result
        if result.metrics.history:
            raise RuntimeError("an answer can be iterated over only once")
        models = session.models
        self.prepare()
        with session.in_use:
            known = session.notes
            models.reuse(self._reuse)
            if self._like is None:
                session.latest = self
            else:
                models.return_to(result.prompt, self._like.result.cached_tokens)
            result.notes += known[len(session.pair.notes) :]
            if result.settings.bitwise:
                result.notes += session.costs.measure_agreement(result.prompt).notes
            number = session.n_answers + 1
        try:
            for event in session.events(result.prompt, result.seed, result.settings):
                result.add(event)
                yield event
        finally:
            # Skip this if the session was closed first, or another answer has started.
            if (context := models.target.kv) and session.n_answers == number:
                models.reuse(allowed=False)
                result.threads = tuple(context.thread_log)
                result.conditions = conditions(models.target.threads, context.n_ctx)
                limit = {"length": "-n", "context": "-c"}.get(result.finish_reason)
                constraint = result.settings.constraint(models.target.model) if limit else None
                if constraint and not constraint.completed([*result.prompt, *result.tokens], len(result.prompt)):
                    result.notes += (f"the answer stopped at {limit} before it fulfilled its grammar; raise {limit}",)
                session.keep_costs()
                result.notes += tuple(note for note in session.notes if note not in known)
                threads, loaded = models.target.threads, models.target.loaded
                if result.metrics.unevenness >= _UNEVEN and 1 < threads >= loaded.threads and not loaded.offloaded:
                    result.notes += (f"CPU busy: -t {threads // 2} may be faster",)  # threads wait for each other
                drafts = models.drafts or not result.settings.cascade.needs_model
                if result.settings.adapts and drafts and not models.shared:
                    result.take_probed_baseline(session.costs.two_over_one)

    def alone(self) -> Generation:
        """The target's own answer to the same prompt with the same seed. It begins with the cache that this answer
        began with, if that is still there. If this answer was interrupted, the other stops after as many tokens.
        """
        result = self.result
        settings = result.settings.alone()
        if not result.complete:
            settings = replace(settings, max_tokens=len(result.tokens))
        alone = GenerationResult(settings, result.seed, result.prompt)
        return Generation(self._session, alone, self._reuse, like=self)

    def compared_with(self, alone: GenerationResult) -> BaselineResult:
        """How this answer compares with the target's own, which `alone` wrote, and the proof if they differ.

        The passes of an answer can be repeated only from the cache that it began with. If the answer reused a cache,
        that must still be there: nothing else may have been written since, and a recurrent model never has it.
        Raises Interrupted, or SpecdecError if llama.cpp fails.
        """
        result, session = self.result, self._session
        speed, reused = alone.metrics.tokens_per_s, result.cached_tokens
        if not result.settings.reproduces:
            return BaselineResult(speed, None)
        differs_at, divergence = first_difference(alone.tokens, result.tokens), None
        repeatable = not reused or (session.latest is self and alone.cached_tokens == reused)
        if differs_at is not None and repeatable:
            of_alone, of_answer = (Transcript.of(each.metrics.history, each.threads) for each in (alone, result))
            divergence = session.divergence(result.prompt, of_alone, of_answer, result.seed, result.settings, reused)
        return BaselineResult(speed, differs_at is None, divergence, differs_at=differs_at)

    def measure_baseline(self) -> None:
        """Run the target alone on the same prompt with the same seed, and compare. The result says if that fails."""
        result = self.result
        result.baseline, result.unmeasured = None, "not measured: interrupted"
        try:
            generation = self.alone()
            for _ in generation:
                pass
            alone = generation.result
            if alone.complete:
                pairs = []
                if result.metrics.drafted:  # otherwise there is no speedup to measure
                    pairs = self._session.paired_speeds(result.prompt, alone.tokens, result.seed, result.settings)
                    if self._session.interrupt.is_set():
                        raise Interrupted
                    reading_s = result.metrics.draft_prefill_s / len(alone.tokens)  # the caches hold the prompt here
                    pairs = [(1 / (1 / drafted + reading_s), alone_speed) for drafted, alone_speed in pairs]
                found = self.compared_with(alone)
                if pairs:
                    drafted_speeds, alone_speeds = zip(*pairs, strict=True)
                    speedup = ratio_of_sums(
                        [1 / speed for speed in alone_speeds], [1 / speed for speed in drafted_speeds]
                    )
                    found = replace(
                        found,
                        tokens_per_s=harmonic_mean(alone_speeds),
                        speedup=speedup,
                        drafted_tokens_per_s=harmonic_mean(drafted_speeds),
                    )
                result.baseline = found
        except Interrupted:
            pass
        except SpecdecError as error:
            result.unmeasured = f"not measured: the target alone failed: {error}"


@contextmanager
def reusing(session: Session) -> Iterator[None]:
    """Let passes in this block continue from the KV caches of the models."""
    session.models.reuse(allowed=True)
    try:
        yield
    finally:
        session.models.reuse(allowed=False)


def to_json(result: GenerationResult, session: Session) -> dict[str, Any]:
    """The object that `run --json` prints; scripts rely on its keys."""
    metrics, settings, pair = result.metrics, result.settings, session.pair
    agreement = session.costs.agreement
    return {
        "text": result.text,
        "tokens": metrics.tokens,
        "finish_reason": metrics.reason,
        "prompt_tokens": len(result.prompt),
        "completion_tokens": metrics.emitted,
        "target": str(pair.target_path),
        "draft": str(pair.draft_path) if pair.draft_path else None,
        "draft_small": str(pair.small_path) if pair.small_path else None,
        **settings.recorded(),
        "lora": [str(adapter) for adapter in pair.adapters],
        "lora_draft": [str(adapter) for adapter in pair.draft_adapters],
        "seed": result.seed,
        "lookahead": settings.lookahead if settings.cascade.looks_ahead else None,
        "lossless": result.lossless,
        **metrics.to_json(session.weights.load_s, session.costs.measured_s),
        "rounding": record_to_json(agreement) if agreement else None,
        "baseline": result.baseline.to_json() if result.baseline else None,
        "speedup": result.speedup,
        "notes": list(result.notes),
    }
