"""Chat templates: the GGUF's own Jinja template, in a sandbox, because a downloaded template is foreign code."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf_header import Header, StringArray


def template_of(header: Header) -> str | None:
    """The model's chat template, or None for a model that only completes text."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template.strip() else None


def render(header: Header, messages: list[dict[str, str]]) -> str:
    """Messages ({"role", "content"}) as text up to where the answer begins. Raises SpecdecError if it fails."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    # Jinja's own filter escapes for HTML, which no model was trained on.
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        template = environment.from_string(template_of(header) or "")
        tokens = {f"{name}_token": special_token(header, name) for name in ("bos", "eos")}
        return template.render(messages=messages, add_generation_prompt=True, **tokens)
    except Exception as error:  # the template is foreign code, and may fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        what = f"the chat template of {header.name} failed: {reason}"
        raise SpecdecError(what, "Use --raw to send the prompt as it is.") from None


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without the arithmetic that could take hours or all memory in one operation."""

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse large numbers where powers are taken, or anything but a number is multiplied."""
        numbers = [side for side in (left, right) if isinstance(side, (int, float))]
        if (operator == "**" or len(numbers) < 2) and any(abs(number) > 1000 for number in numbers):
            raise jinja2.TemplateError(f"a number is too large for {operator}")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """The tag that marks the assistant's words for training; for writing a prompt its body is just text."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def special_token(header: Header, name: str) -> str:
    """The text of a special token such as `bos`; empty if the model has none."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token, int) and isinstance(tokens, StringArray) and 0 <= token < tokens.count:
        return tokens.values[token].decode("utf-8", "replace")
    return ""


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
