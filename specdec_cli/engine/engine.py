"""The engine: a pair of models in memory that answers prompts, for the commands and the library."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from threading import Lock
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, cast, overload

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.types import Event
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.generation_result import GenerationResult, text_of
from specdec_cli.engine.parallel_answers import PARALLEL, ParallelAnswers
from specdec_cli.engine.session import Generation, Session
from specdec_cli.gguf.chat_template import template_of
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.settings.options import SamplingParams, SpeculativeConfig
from specdec_cli.settings.settings import Settings
from specdec_cli.weights.model_pair import ModelPair, check_pair
from specdec_cli.weights.prompt import Prompt, is_list_of_prompts
from specdec_cli.weights.weights import Weights

_Given = ParamSpec("_Given")


def _as_text(
    stream: Callable[Concatenate[Engine, _Given], Generator[Event, None, None]],
) -> Callable[Concatenate[Engine, _Given], Generator[str, None, None]]:
    def stream_text(engine: Engine, /, *args: _Given.args, **named: _Given.kwargs) -> Generator[str, None, None]:
        """The text of an answer as it comes, ready to print. Takes the arguments and raises the errors of `stream`."""
        return _texts(stream(engine, *args, **named))

    return stream_text


def _texts(events: Generator[Event, None, None]) -> Generator[str, None, None]:
    with closing(events):
        yield from filter(None, map(text_of, events))


class Engine(AbstractContextManager["Engine"]):
    """A pair's weights, loaded once per process. Any thread may use it. Use it in a `with` block, or call `close`.

    Each answer runs in a session. The engine opens as many of its own as answers run at a time; `session` opens one for
    a text that several answers continue.

    interrupt: stops a forward pass in the middle, in sessions without their own; without one, a pass runs to its end.
    tune: whether to use the results of `specdec tune`. accept: the acceptance rule that the user named; if None, a
    fixed seed selects `coupled`. variants: other settings that answers will use. pair: the result of `check_pair` for
    these settings.
    """

    def __init__(
        self,
        settings: Settings,
        interrupt: Interrupt | None = None,
        tune: bool = True,
        accept: str | None = None,
        variants: Sequence[Settings] = (),
        pair: ModelPair | None = None,
    ) -> None:
        started = perf_counter()
        self.settings, self.interrupt, self._accept = settings, interrupt or Interrupt(), accept
        self.weights = Weights(pair or check_pair(settings), settings, self.interrupt, tune, variants)
        self.weights.load_s = perf_counter() - started
        self._sessions: list[Session] = []
        self._idle: list[Session] = []
        """The engine's own sessions without an answer; the one used last is used next."""
        self._lock = Lock()
        self._parallel = ParallelAnswers(self.weights)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pair(self) -> ModelPair:
        return self.weights.pair

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the pair, such as a draft model that failed to load."""
        return (*self.pair.notes, *self.weights.notes)

    def session(self, interrupt: Interrupt | None = None) -> Session:
        """Open a session. The engine closes it if you don't. interrupt: stops only this session."""
        session = Session(self.weights, interrupt or self.interrupt, self._accept)
        session.on_close = self._forget
        with self._lock:
            self._parallel.require_open()
            self._sessions.append(session)
        return session

    def _forget(self, session: Session) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        parallel: int = PARALLEL,
        n: int | None = None,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
        parallel: int = PARALLEL,
        n: int | None = None,
    ) -> GenerationResult | list[GenerationResult]:
        """The answer to a prompt. Takes the arguments and raises the errors of `stream`.

        For a list of prompts, their answers in order. With `n`, `n` answers to each prompt, which is read only once,
        with the seeds seed, seed + 1 and so on. They are computed together, at most `parallel` at a time. If one fails,
        its result has the `error`, and the others go on. Shared passes round differently from those of a single answer,
        so a near-tie may turn out differently.
        """
        session = self._idle_session()
        try:
            if (several := is_list_of_prompts(prompt)) or n is not None:
                prompts = cast(Sequence[Prompt], prompt if several else [prompt])
                count = 1 if n is None else n
                return self._parallel.answers(session, prompts, sampling, speculative, system, raw, parallel, count)
            return session.generate(cast(Prompt, prompt), sampling, speculative, system=system, raw=raw)
        finally:
            self._idle.append(session)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> Generator[Event, None, None]:
        """The events of an answer: a Prefill for each model, a Step for each pass of the target, and one Done.

        prompt: a text, a conversation of {"role", "content"}, or token ids. Texts and conversations go through the
        model's chat template, if it has one, unless `raw`. The part of the prompt that is in the KV caches isn't read
        again. You may close the stream at any time.
        Raises UsageError on invalid values, SpecdecError if the prompt is too long or llama.cpp fails.
        """
        session = self._idle_session()
        try:
            answer = session.start(prompt, sampling, speculative, system=system, raw=raw)
        except BaseException:
            self._idle.append(session)
            raise
        events = self._streamed(session, answer)
        next(events)
        return cast(Generator[Event, None, None], events)

    stream_text = _as_text(stream)

    def _streamed(self, session: Session, answer: Generation) -> Generator[Event | None, None, None]:
        """The events after a None: once that was taken, closing the stream gives the session back."""
        try:
            yield None
            yield from answer
        finally:
            self._idle.append(session)

    def chat(
        self,
        system: str | None = None,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
    ) -> Conversation:
        """A conversation in a session of its own, which keeps its messages, and doesn't read again what is in its
        KV caches. system: the system message. Raises UsageError if the target has no chat template.
        """
        if template_of(self.pair.target) is None:
            raise UsageError("a conversation needs a chat template", "Use generate or stream with a text.")
        conversation = Conversation(self.session())
        conversation.system = system
        try:
            conversation.set_options(sampling, speculative)
        except SpecdecError:
            conversation.close()
            raise
        return conversation

    def tokenize(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """A prompt's tokens. Takes the arguments and raises the errors of `stream`."""
        return self.weights.tokenize(prompt, system, raw, self.interrupt.is_set).tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of some tokens. A part of a character becomes U+FFFD."""
        return b"".join(map(self.weights.target.model.piece, tokens)).decode("utf-8", "replace")

    def _idle_session(self) -> Session:
        """One of the engine's own sessions without an answer. The caller puts it back into `_idle` after the answer."""
        with self._lock:
            self._parallel.require_open()
            if self._idle:
                return self._idle.pop()
        return self.session()

    def close(self) -> None:
        """Close all sessions, which ends their answers, then free the weights."""
        for session in [*self._sessions]:
            session.in_use.require_other_thread()
        self._parallel.close()
        with self._lock:
            sessions = [*self._sessions]
        # They may share an interrupt, so no answer is ended before all sessions are.
        for session in [session for session in sessions if session.in_use.begin_closing().locked()]:
            session.interrupt.set()
        for session in sessions:
            session.close()
        self.weights.close()


@contextmanager
def one_session(settings: Settings, interrupt: Interrupt | None = None, **engine_options: Any) -> Iterator[Session]:
    """A session with its own engine. engine_options: arguments of `Engine`."""
    with Engine(settings, interrupt, **engine_options) as engine:
        yield engine.session()
