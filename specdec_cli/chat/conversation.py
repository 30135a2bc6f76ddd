"""A conversation with a pair: what both models have read of it is not read again, whatever the template does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.config import Settings
from specdec_cli.engine.options import SamplingParams, SpeculativeConfig
from specdec_cli.engine.prompt import Message, render
from specdec_cli.engine.session import Generation, Session

LEAST_ANSWER = 64
"""Tokens of the context that are left for an answer, before earlier turns are dropped for it."""


class ContextFull(SpecdecError):
    """The conversation does not fit any more, and no turn may be dropped."""

    def __init__(self, n_ctx: int) -> None:
        super().__init__(f"the conversation fills the context of {n_ctx:,} tokens", "Use /clear, or a larger -c.")


@dataclass(frozen=True, slots=True)
class ReadText:
    """What the models have read, as text and as tokens. marks: where prompts and answers end in both, in order."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()

    def followed_by(self, text: str, tokens: Sequence[int]) -> ReadText:
        text, all_tokens = self.text + text, (*self.tokens, *tokens)
        return ReadText(text, all_tokens, (*self.marks, (len(text), len(all_tokens))))


@dataclass(slots=True)
class Conversation:
    """Messages, and the tokens they were. drops: whether a full context drops the oldest turns; the system message
    never goes. sampling, speculative: what the next answer goes by. read: by the models, so far.
    """

    session: Session
    messages: list[dict[str, str]] = field(default_factory=list)
    drops: bool = True
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    n_dropped: int = 0
    """Messages that the last prompt left out."""
    read: ReadText = field(default_factory=ReadText)

    @property
    def system(self) -> str | None:
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        self.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    @property
    def answered(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def ask(self, text: str) -> Generation:
        """The answer to a message: iterate over it, then `keep` it. Raises ContextFull, or as `Session.start`."""
        self.messages.append({"role": "user", "content": text})
        try:
            return self._start(self.speculative)
        except SpecdecError:
            self.messages.pop()
            raise

    @property
    def n_tokens(self) -> int:
        """Of the conversation, as far as it has been read."""
        return len(self.read.tokens)

    @property
    def settings(self) -> Settings:
        """What the next answer goes by."""
        return self.session.settings_of(self.sampling, self.speculative)

    def go_by(self, sampling: SamplingParams | None = None, speculative: SpeculativeConfig | None = None) -> None:
        """Let the next answers go by other values. Raises UsageError, and changes nothing, if they make no sense."""
        sampling, speculative = sampling or self.sampling, speculative or self.speculative
        self.session.settings_of(sampling, speculative)
        self.sampling, self.speculative = sampling, speculative

    def again(self, alone: bool = False, seed: int | None = None) -> Generation:
        """Another answer to the last message in place of the last one, which `keep` replaces. alone: by the target
        without drafts. seed: of this answer.
        """
        if not any(message["role"] == "user" for message in self.messages):
            raise UsageError("there is no message to answer yet", "Write one.")
        messages, self.messages = self.messages, self.messages[:-1] if self.answered else self.messages
        try:
            return self._start(SpeculativeConfig(drafter="none") if alone else self.speculative, seed)
        finally:
            self.messages = messages

    def keep(self, answer: Generation) -> None:
        """Make an answer, which may be incomplete, the last message."""
        if self.answered:
            self.messages.pop()
        self.messages.append({"role": "assistant", "content": answer.result.text})
        if answer.result.finish_reason != "stop_string":  # its tokens say more than its text
            self.read = self.read.followed_by(answer.result.text, answer.result.tokens)

    def undo(self) -> str | None:
        """Take the last message of the user back, with its answer. Returns it; None if there is none."""
        for i in reversed(range(len(self.messages))):
            if self.messages[i]["role"] == "user":
                text = self.messages[i]["content"]
                del self.messages[i:]
                return text
        return None

    def clear(self) -> None:
        """Begin anew, with the same system message."""
        self.messages = self.messages[:1] if self.system is not None else []

    def _start(self, speculative: SpeculativeConfig, seed: int | None = None) -> Generation:
        prompt = self._fitting()
        sampling = self.sampling if seed is None else replace(self.sampling, seed=seed)
        answer = self.session.start(prompt.tokens, sampling, speculative)
        self.read = prompt.followed_by("", [])
        return answer

    def _fitting(self) -> ReadText:
        """The prompt that the context has room for, with the oldest turns left out if it must be so."""
        most = self.session.settings.ctx or self.session.models.target.model.n_ctx_train
        first = 1 if self.system is not None else 0
        messages, self.n_dropped = self.messages, 0
        while True:
            prompt = self._prompt_of(messages)
            if not most or len(prompt.tokens) + LEAST_ANSWER <= most:
                return prompt
            rest = _without_a_turn(messages[first:])
            if not rest or not self.drops:
                raise ContextFull(most)
            messages = [*messages[:first], *rest]
            self.n_dropped = len(self.messages) - len(messages)

    def _prompt_of(self, messages: Sequence[Message]) -> ReadText:
        """The prompt of some messages. What has been read before keeps the tokens that it had: those of an answer need
        not be those that a tokenizer would make of its text.
        """
        model = self.session.models.target.model
        text, add_bos = render(messages, self.session.pair.target, self.session.interrupt.is_set)
        before = self.read
        marks = [mark for mark in before.marks if text.startswith(before.text[: mark[0]])]
        if not marks:
            return ReadText(text, tuple(model.tokenize(text, add_bos=add_bos)))
        end, count = marks[-1]
        rest = model.tokenize(text[end:], add_bos=False)
        return ReadText(text, (*before.tokens[:count], *rest), tuple(marks))


def _without_a_turn(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without the oldest question and what answered it; nothing if there is no other."""
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return messages[questions[1] :] if len(questions) > 1 else []
