"""From a prompt, as a user or a suite gives it, to the tokens that the target reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import chat_template
from specdec_cli.gguf.header import Header
from specdec_cli.llama.model import Model

if TYPE_CHECKING:
    pass


Message: TypeAlias = Mapping[str, str]
"""One message of a conversation: {"role": "system", "user" or "assistant", "content": text}."""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or tokens."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """tokens: at least one. notes: what of the request was not used."""

    tokens: list[int]
    notes: tuple[str, ...] = ()


def tokenize(
    prompt: Prompt,
    model: Model,
    header: Header,
    system: str | None = None,
    raw: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> TokenizedPrompt:
    """The prompt's tokens, through the model's chat template if it has one.

    system: the system message of a text prompt. raw: leave the template out. Raises UsageError on messages that a
    model without a template, or `raw`, cannot read, SpecdecError if the template fails or nothing is left to continue,
    Interrupted when `stopped` says so in the middle of the template.
    """
    notes: tuple[str, ...] = ()
    template = not raw and chat_template.template_of(header) is not None
    if not isinstance(prompt, str):
        if all(isinstance(entry, Integral) for entry in prompt):
            return _checked([int(entry) for entry in prompt if isinstance(entry, Integral)], model)
        messages = [_message(entry) for entry in prompt]
        if not template:
            raise UsageError("this prompt is a conversation, which needs a chat template", "Give its text instead.")
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
    if template:
        text, add_bos = render(messages, header, stopped)
        tokens = model.tokenize(text, add_bos=add_bos)
    else:
        notes = ("--system is not used: the prompt goes to the model as it is",) if system else ()
        tokens = model.tokenize(str(prompt))
    return _checked(tokens, model, notes)


def render(messages: Sequence[Message], header: Header, stopped: Callable[[], bool]) -> tuple[str, bool]:
    """A conversation as its template writes it, and whether the BOS token is yet to be added."""
    text = chat_template.render(header, [dict(message) for message in messages], stopped)
    bos = chat_template.special_token(header, "bos")
    return text, not (bos and text.startswith(bos))


def _message(entry: object) -> dict[str, str]:
    if isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in ("role", "content")):
        return {str(key): str(value) for key, value in entry.items()}
    raise UsageError(f"{entry!r:.60} is not a message", 'Write {"role": "user", "content": "..."}.')


def _checked(tokens: list[int], model: Model, notes: tuple[str, ...] = ()) -> TokenizedPrompt:
    if not tokens:
        raise SpecdecError("the prompt has no tokens", "Give a longer one.")
    if not 0 <= min(tokens) <= max(tokens) < model.n_vocab:
        raise UsageError(f"the prompt holds a token outside the vocabulary of {model.n_vocab:,}", "Check its ids.")
    return TokenizedPrompt(tokens, notes)
