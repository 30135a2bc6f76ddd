"""Chat templates: the GGUF's own Jinja template, in a sandbox, because a downloaded template is foreign code."""

from __future__ import annotations

from collections.abc import Callable

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.gguf import template_sandbox
from specdec_cli.gguf.header import Header, StringArray

_LONGEST_REASON = 500  # characters: a template may refuse with any text


def template_of(header: Header) -> str | None:
    """The model's chat template, or None for a model that only completes text."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template.strip() else None


def render(header: Header, messages: list[dict[str, str]], stopped: Callable[[], bool] = lambda: False) -> str:
    """Messages ({"role", "content"}) as text up to where the answer begins.

    Raises SpecdecError if the template fails or goes on without end, Interrupted when `stopped` says so.
    """
    try:
        tokens = {f"{name}_token": special_token(header, name) for name in ("bos", "eos")}
        variables = {"messages": messages, "add_generation_prompt": True, **tokens}
        return template_sandbox.render(template_of(header) or "", variables, stopped)
    except Interrupted:
        raise
    except Exception as error:  # the template is foreign code, and may fail in any way
        reason = " ".join(str(error)[:_LONGEST_REASON].split()) or type(error).__name__
        what = f"the chat template of {header.name} failed: {reason}"
        raise SpecdecError(what, "Use --raw to send the prompt as it is.") from None


def special_token(header: Header, name: str) -> str:
    """The text of a special token such as `bos`; empty if the model has none."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token, int) and isinstance(tokens, StringArray) and 0 <= token < tokens.count:
        return tokens.values[token].decode("utf-8", "replace")
    return ""
