"""A conversation with a pair, which doesn't read again what is in its KV caches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.drafters.translation import tokenize_after
from specdec_cli.engine.generation_result import GenerationResult, text_of
from specdec_cli.engine.session import Generation, Session
from specdec_cli.settings.options import SamplingParams, SpeculativeConfig
from specdec_cli.settings.settings import Settings
from specdec_cli.weights.prompt import Message, render

MIN_ANSWER = 64
"""Tokens that a prompt must leave free for the answer."""


@dataclass(frozen=True, slots=True)
class ReadText:
    """What the models have read, as text and as tokens. marks: where each prompt and answer ends in both, in order."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()

    def followed_by(self, text: str, tokens: Sequence[int]) -> ReadText:
        text, all_tokens = self.text + text, (*self.tokens, *tokens)
        return ReadText(text, all_tokens, (*self.marks, (len(text), len(all_tokens))))


@dataclass(slots=True)
class Conversation:
    """Messages, and what the models have read of them. drops_oldest: whether a full context drops the oldest turns, but
    never the system message. sampling, speculative: for the next answer.
    """

    session: Session
    messages: list[dict[str, str]] = field(default_factory=list)
    drops_oldest: bool = True
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    oldest: Message | None = None
    """The first message that the last prompt kept, if it left out others; the next one begins there, too, if it fits.
    """
    regains: bool = False
    """Whether the next prompt takes back earlier messages that fit: there may be more room for them now."""
    read: ReadText = field(default_factory=ReadText)
    _pending: Generation | None = None
    """The answer that `stream_text` yields now."""

    @property
    def system(self) -> str | None:
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._settle()
        rest = self.messages[1:] if self.system is not None else self.messages
        self.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    @property
    def n_dropped(self) -> int:
        """How many messages the last prompt left out."""
        return next((i - self._n_system for i, message in enumerate(self.messages) if message is self.oldest), 0)

    @property
    def answered(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def ask(self, text: str) -> Generation:
        """The answer to a message: iterate over it, then `keep` it. Raises as `Session.start`, or if it's too long."""
        self._settle()
        self.messages.append({"role": "user", "content": text})
        try:
            return self._start()
        except BaseException:  # Ctrl-C, too
            self.messages.pop()
            raise

    @property
    def n_tokens(self) -> int:
        """Tokens of the conversation that the models have read."""
        return len(self.read.tokens)

    @property
    def settings(self) -> Settings:
        """The settings of the next answer."""
        return self.session.settings_of(self.sampling, self.speculative)

    def set_options(self, sampling: SamplingParams | None = None, speculative: SpeculativeConfig | None = None) -> None:
        """Change the settings of the next answers. Raises UsageError on invalid values, and then changes nothing."""
        sampling, speculative = sampling or self.sampling, speculative or self.speculative
        self.session.settings_of(sampling, speculative)
        self.sampling, self.speculative = sampling, speculative

    def say(self, text: str) -> GenerationResult:
        """The answer to a message, which becomes a part of the conversation. Raises as `ask`."""
        with self._kept(self.ask(text)) as answer:
            for _ in answer:
                pass
        return answer.result

    def stream_text(self, text: str) -> Iterator[str]:
        """The text of the answer to a message as it comes. The message and as much of the answer as you take become
        a part of the conversation. Raises as `ask`.
        """
        with self._kept(self.ask(text)) as answer:
            yield from filter(None, map(text_of, answer))

    @contextmanager
    def _kept(self, answer: Generation) -> Iterator[Generation]:
        """Keep an answer after the block, even if it was cut off, unless there is nothing of it."""
        self._pending = answer
        try:
            yield answer
        finally:
            if self._pending is answer:
                self._settle()

    def _settle(self) -> None:
        """Keep what there is of an answer whose stream was left."""
        answer, self._pending = self._pending, None
        if answer and (answer.result.complete or answer.result.text):
            self.keep(answer)
        elif answer:
            self.undo()

    def regenerate(self) -> Generation:
        """Another answer to the last message. `keep` replaces the last answer with it."""
        self._settle()
        if not any(message["role"] == "user" for message in self.messages):
            raise UsageError("there is no message to answer yet", "Write one.")
        messages, self.messages = self.messages, self.messages[:-1] if self.answered else self.messages
        try:
            return self._start()
        finally:
            self.messages = messages

    def keep(self, answer: Generation) -> None:
        """Make an answer the last message; it may be incomplete."""
        result, tokens, piece = answer.result, answer.result.tokens, self.session.models.target.model.piece
        if self.answered:
            self.messages.pop()
        self.messages.append({"role": "assistant", "content": result.text})
        if result.finish_reason == "stop" and not piece(tokens[-1]):
            tokens = tokens[:-1]  # the template writes the end of a turn
        if b"".join(map(piece, tokens)).decode("utf-8", "replace") == result.text:  # a cut answer may have less text
            self.read = self.read.followed_by(result.text, tokens)

    def undo(self) -> str | None:
        """Remove the user's last message and its answer. Returns the message, or None if there is none."""
        self._settle()
        for i in reversed(range(len(self.messages))):
            if self.messages[i]["role"] == "user":
                text = self.messages[i]["content"]
                del self.messages[i:]
                self.regains = True
                return text
        return None

    def clear(self) -> None:
        """Start a new conversation with the same system message."""
        self._settle()
        self.messages = self.messages[:1] if self.system is not None else []

    def close(self) -> None:
        """End the conversation, and free what it holds in memory."""
        self.session.close()

    def _start(self) -> Generation:
        prompt, first = self._fitting()
        answer = self.session.start(prompt.tokens, self.sampling, self.speculative)
        self.read = prompt.followed_by("", [])
        self.oldest, self.regains = self.messages[first] if first > self._n_system else None, False
        return answer

    @property
    def _n_system(self) -> int:
        return 0 if self.system is None else 1

    def _fitting(self) -> tuple[ReadText, int]:
        """The prompt, and where its turns begin. If the context has no room for the oldest turns, it leaves out enough
        of them that the next prompts begin like this one.
        """
        most = self.session.settings.ctx or self.session.models.target.model.n_ctx_train
        answer = max(MIN_ANSWER, min(self.settings.max_tokens, most // 4))
        system = self._n_system
        first = system + (self.n_dropped if self.drops_oldest else 0)
        questions = [i for i, message in enumerate(self.messages) if message["role"] == "user"]

        def prompt_from(first: int) -> ReadText:
            return self._prompt_of([*self.messages[:system], *self.messages[first:]])

        def place(starts: Sequence[int], room: int) -> int:
            """The index of the first start from which a prompt has at most `room` tokens, else of the last."""
            return bisect_left(starts[:-1], True, key=lambda i: len(prompt_from(i).tokens) <= room)

        several = most - answer - most // 4  # leaves room for several turns more
        if self.regains and first > system:
            starts = [*(i for i in questions if i < first), first]
            fits = not most or len(prompt_from(system).tokens) + answer <= most
            first = system if fits else starts[place(starts, several)]
        prompt = prompt_from(first)
        if not most or len(prompt.tokens) + answer <= most:
            return prompt, first
        _, *later = [i for i in questions if i >= first]
        if later and self.drops_oldest:
            # After a long question there may be room for earlier ones, but not for several turns more.
            places = (place(later, room) for room in (several, most - answer, most - MIN_ANSWER))
            first = later[next((i for i in places if i < len(later) - 1), -1)]
            prompt = prompt_from(first)
        if len(prompt.tokens) + MIN_ANSWER > most:
            what = f"the conversation fills the context of {most:,} tokens"
            raise SpecdecError(what, "Start a new one, or set a larger context (-c).")
        return prompt, first

    def _prompt_of(self, messages: Sequence[Message]) -> ReadText:
        """The prompt of some messages. Text that the models have read keeps its tokens: a tokenizer could split an
        answer into other tokens.
        """
        model = self.session.models.target.model
        stopped, variables = self.session.interrupt.is_set, self.settings.template_variables
        text, add_bos = render(messages, self.session.pair.target, stopped, variables)
        before = self.read
        marks = [mark for mark in before.marks if text.startswith(before.text[: mark[0]])]
        if not marks:
            return ReadText(text, tuple(model.tokenize(text, add_bos=add_bos)))
        end, count = marks[-1]
        return ReadText(text, (*before.tokens[:count], *tokenize_after(model, text[end:])), tuple(marks))
