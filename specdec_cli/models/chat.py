"""Chat templates: the GGUF's own Jinja template, in a sandbox, because a downloaded template is foreign code."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import Header, StringArray


def template_of(header: Header) -> str | None:
    """The model's chat template, or None for a model that only completes text."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template.strip() else None


def render(header: Header, messages: list[dict[str, str]]) -> str:
    """Messages ({"role", "content"}) as the text that the model was trained on, up to where its answer begins.

    Raises SpecdecError if the template fails or refuses the messages.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        template = environment.from_string(template_of(header) or "")
        return template.render(
            messages=messages,
            add_generation_prompt=True,
            bos_token=special_token(header, "bos"),
            eos_token=special_token(header, "eos"),
        )
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecdecError(
            f"the chat template of {header.name} failed: {reason}", "Use --raw to send the prompt as it is."
        ) from None


def special_token(header: Header, name: str) -> str:
    """The text of a special token such as `bos`; empty if the model has none."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token, int) and isinstance(tokens, StringArray) and 0 <= token < tokens.count:
        return tokens.values[token].decode("utf-8", "replace")
    return ""


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
