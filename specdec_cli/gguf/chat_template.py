"""Renders a GGUF's Jinja chat template, in a child process with limits, because the template is untrusted code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from specdec_cli.bounded_child import BoundedChild, Limits
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.gguf.thoughts import CHANNEL, MESSAGE, Thoughts

_renderer = BoundedChild("specdec_cli.gguf.template_child", Limits(1.5, 192 << 20, 256))


def template_of(header: Header) -> str | None:
    """The model's chat template; None for a model that only completes text."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template.strip() else None


def special_token(header: Header, name: str) -> str:
    """The text of a special token such as `bos`; empty if the model has none."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token, int) and isinstance(tokens, StringArray) and 0 <= token < tokens.count:
        return tokens.values[token].decode("utf-8", "replace")
    return ""


def final_answer(text: str) -> str:
    """The last final message of gpt-oss in an answer; another model's answer as it is. llama.cpp makes the marks of its
    channels text, which its template refuses in later turns.
    """
    if not text.startswith(CHANNEL):
        return text
    return Thoughts().push(text, ended=True)[1].rpartition(f"{CHANNEL}final{MESSAGE}")[2]


def warm_up(header: Header) -> None:
    """Start compiling a model's template, if it has one, while the model loads."""
    if source := template_of(header):
        with suppress(OSError):
            _renderer.tell({"source": source})


def render(
    header: Header,
    messages: list[dict[str, str]],
    stopped: Callable[[], bool] = lambda: False,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Render messages ({"role", "content"}) as text, up to the start of the answer. variables: further ones for the
    template, which also replace those it has anyway.

    Raises SpecdecError if the template fails or exceeds a limit, Interrupted once `stopped` returns True.
    """
    tokens = {f"{name}_token": special_token(header, name) for name in ("bos", "eos")}
    given = {"messages": messages, "add_generation_prompt": True, **tokens, **variables}
    try:
        answer = _renderer.ask({"source": template_of(header) or "", "variables": given}, stopped)
    except OSError as error:
        answer = {"reason": f"its process cannot run: {error.strerror}"}
    if "text" in answer:
        return str(answer["text"])
    what = f"the chat template of {header.name} failed: {answer.get('reason', 'it takes too much time or memory')}"
    raise SpecdecError(what, "Use --raw to send the prompt as it is.")
