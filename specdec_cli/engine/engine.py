"""A pair of models in memory that answers prompts: what every command, and a program, runs a pair with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from time import perf_counter
from typing import Any

from specdec_cli.decoding.types import Event
from specdec_cli.engine.config import Settings
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.engine.model_pair import ModelPair, check_pair
from specdec_cli.engine.options import SamplingParams, SpeculativeConfig
from specdec_cli.engine.prompt import Prompt
from specdec_cli.engine.session import Generation, Session
from specdec_cli.engine.weights import Weights
from specdec_cli.llama.interrupt import Interrupt


class Engine(AbstractContextManager["Engine"]):
    """What a process loads once: a pair's weights. Any thread may use it. Use it in a `with` block, or call `close`.

    Each answer is written in a session: one of the engine's own, as many as there are answers at a time, or one that
    `session` opens, for a text that is gone on with.

    interrupt: what stops a pass in the middle, in sessions that have no other; without one, nothing does, and Ctrl-C is
    Python's. tune: go by what `specdec tune` measured. accept: the acceptance rule that was asked for by name;
    otherwise a fixed seed chooses `coupled`. ways: other settings that will be asked for. pair: what `check_pair`
    returned for these settings.
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
        started = perf_counter()
        self.settings, self.interrupt, self._accept = settings, interrupt or Interrupt(), accept
        self.weights = Weights(pair or check_pair(settings), settings, self.interrupt, tune, ways)
        self.weights.load_s = perf_counter() - started
        self._sessions: list[Session] = []
        self._idle: list[Session] = []
        """Of the engine's own sessions those that write nothing; the one used last is used next."""
        self._lock = Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pair(self) -> ModelPair:
        return self.weights.pair

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the pair: a draft model that could not be loaded, for example."""
        return (*self.pair.notes, *self.weights.notes)

    def session(self, interrupt: Interrupt | None = None) -> Session:
        """A session for a text of its own, closed with the engine at the latest. interrupt: stops this one alone."""
        session = Session(self.weights, interrupt or self.interrupt, self._accept)
        with self._lock:
            self._sessions.append(session)
        return session

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
        session = self._taken()
        try:
            return session.generate(prompt, sampling, speculative, system=system, raw=raw)
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
    ) -> Iterator[Event]:
        """The answer to a prompt as it comes: a Prefill for each model, a Step for each pass of the target, one Done.

        prompt: a text, a conversation of {"role", "content"}, or token ids. Text and conversations go through the
        model's chat template, if it has one and not `raw`. What both models have read of the prompt in earlier answers
        is not read again. The stream may be abandoned at any time.
        Raises UsageError on senseless values, SpecdecError if the prompt is too long or llama.cpp fails.
        """
        session = self._taken()
        try:
            answer = session.start(prompt, sampling, speculative, system=system, raw=raw)
        except BaseException:
            self._idle.append(session)
            raise
        return self._streamed(session, answer)

    def _streamed(self, session: Session, answer: Generation) -> Iterator[Event]:
        try:
            yield from answer
        finally:
            self._idle.append(session)

    def tokenize(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """A prompt's tokens; arguments and errors are those of `stream`."""
        return self.weights.tokenize(prompt, system, raw, self.interrupt.is_set).tokens

    def _taken(self) -> Session:
        """A session of the engine's own that writes nothing else; it goes back to `_idle` after the answer."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.session()

    def close(self) -> None:
        """Close all sessions, then free the weights."""
        for session in self._sessions:
            session.close()
        self.weights.close()


@contextmanager
def one_session(settings: Settings, interrupt: Interrupt | None = None, **about: Any) -> Iterator[Session]:
    """A session with an engine of its own, as a command needs it that writes one text at a time. about: as of
    `Engine`.
    """
    with Engine(settings, interrupt, **about) as engine:
        yield engine.session()
