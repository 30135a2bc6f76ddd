"""What chat_template's child process does: it renders in Jinja's sandbox.

A request without variables only compiles its template and gets no answer.
"""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_SOURCE = 48 << 10  # characters of a template; real ones have up to 30,000
_MAX_TEXT, _TEXT_PER_INPUT_BYTE = 1 << 20, 16  # characters of the rendered text
_MAX_REASON = 500  # characters of an error, because a template may raise one with any text
_GLOBALS = "cycler dict joiner namespace range"


def answer(request: dict[str, Any], n_bytes: int) -> dict[str, str] | None:
    """The `text` of a template and its variables, or the `reason` for a failure; None without variables."""
    wanted = "variables" in request
    try:
        template = _compiled(request["source"])
        text = template.render(request["variables"]) if wanted else ""
        if len(text) > _MAX_TEXT + _TEXT_PER_INPUT_BYTE * n_bytes:
            raise MemoryError
        answer = {"text": text}
    except MemoryError:
        raise
    except Exception as error:  # the template may raise anything
        answer = {"reason": " ".join(str(error)[:_MAX_REASON].split()) or type(error).__name__}
    return answer if wanted else None


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    if len(source) > _MAX_SOURCE:
        raise TemplateError(f"it has {len(source):,} characters; the limit is {_MAX_SOURCE:,}")
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.globals = {name: sandbox.globals[name] for name in _GLOBALS.split()}
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    return sandbox.from_string(source)


class _Generation(Extension):
    """The `generation` tag, which marks the assistant's text for training. In a prompt, its body is plain text."""

    tags = {"generation"}  # noqa: RUF012  # like Jinja's declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: Any = None, **_: Any) -> str:
    """JSON without the HTML escapes of Jinja's own filter, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
