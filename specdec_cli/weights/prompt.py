"""Turns a prompt into the tokens that the target reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import chat_template
from specdec_cli.gguf.header import Header
from specdec_cli.llama.model import Model

Message: TypeAlias = Mapping[str, str]
"""A message of a conversation: {"role": "system", "user" or "assistant", "content": text}."""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or tokens."""


def is_list_of_prompts(prompt: Prompt | Sequence[Prompt]) -> TypeGuard[Sequence[Prompt]]:
    """Whether these are several prompts: a list of texts, of conversations, or of lists of tokens."""
    first = None if isinstance(prompt, str) or not len(prompt) else prompt[0]
    return isinstance(first, Sequence)


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """tokens: at least one. notes: what wasn't used, for the user."""

    tokens: list[int]
    notes: tuple[str, ...] = ()


def tokenize(
    prompt: Prompt,
    model: Model,
    header: Header,
    system: str | None = None,
    raw: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> TokenizedPrompt:
    """The prompt's tokens, through the model's chat template if it has one.

    system: the system message of a text prompt. raw: skip the template. stopped: whether to stop rendering, with
    Interrupted. variables: the template's, besides the conversation. Raises UsageError on a conversation without a
    template, SpecdecError if the template fails or there are no tokens.
    """
    notes: tuple[str, ...] = ()
    template = not raw and chat_template.template_of(header) is not None
    if not isinstance(prompt, str):
        if all(issubclass(kind, Integral) for kind in set(map(type, prompt))):
            return _checked([int(entry) for entry in prompt], model)  # type: ignore[arg-type]
        messages = [_message(entry) for entry in prompt]
        if not template:
            raise UsageError("a conversation needs a chat template", "Pass the prompt as text instead.")
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
    if template:
        text, add_bos = render(messages, header, stopped, variables)
        tokens = model.tokenize(text, add_bos=add_bos)
    else:
        why = "with --raw" if raw else "because this model has no chat template"
        given = {"--system": system, "--chat-template-kwargs": variables}
        notes = tuple(f"{flag} has no effect {why}" for flag, value in given.items() if value)
        tokens = model.tokenize(str(prompt))
    return _checked(tokens, model, notes)


def render(
    messages: Sequence[Message],
    header: Header,
    stopped: Callable[[], bool],
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[str, bool]:
    """A conversation as the template renders it, and whether the BOS token must be added."""
    shown = [dict(message) for message in messages]
    for message in shown:
        if message["role"] == "assistant":
            message["content"] = chat_template.final_answer(message["content"])
    text = _rendered(shown, partial(chat_template.render, header, stopped=stopped, variables=variables))
    bos = chat_template.special_token(header, "bos")
    return text, not (bos and text.startswith(bos))


def _rendered(messages: list[dict[str, str]], render: Callable[[list[dict[str, str]]], str]) -> str:
    """Like `render`. Some templates refuse a system message or leave it out: then the message after it
    begins with it, as in llama-server.
    """
    first, *others = messages
    if first["role"] == "system" and others:
        with suppress(SpecdecError):
            text = render(messages)
            # Some templates act on a part of it and leave that out, such as "/no_think".
            if first["content"].strip() in text or text != render(others):
                return text
        joined = {**others[0], "content": f"{first['content']}\n{others[0]['content']}"}
        messages = [joined, *others[1:]]
    return render(messages)


def _message(entry: object) -> dict[str, str]:
    needed = ("role", "content")
    if isinstance(entry, Mapping) and not entry.get("tool_calls"):
        # OpenAI's library fills in the fields that a message doesn't have.
        given = {str(k): value for k, value in entry.items() if isinstance(value, str) and (value or k in needed)}
        if given.keys() >= {*needed}:
            return given
    raise UsageError(f"{entry!r:.60} is not a message", 'Write {"role": "user", "content": "..."}.')


def _checked(tokens: list[int], model: Model, notes: tuple[str, ...] = ()) -> TokenizedPrompt:
    if not tokens:
        raise SpecdecError("the prompt has no tokens", "Give a longer prompt.")
    if not 0 <= min(tokens) <= max(tokens) < model.n_vocab:
        raise UsageError(f"a token id of the prompt is outside the vocabulary of {model.n_vocab:,}", "Check the ids.")
    return TokenizedPrompt(tokens, notes)
