"""The child process of chat_template, run as a script: it renders in Jinja's sandbox, within limits.

Each input line is a request and each output line an answer, both in JSON. A request without variables only compiles its
template and gets no answer. The process ends at the end of its input, and when a template exceeds a limit.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_SOURCE = 48 << 10  # characters of a template; real ones have up to 30,000
_MAX_TEXT, _TEXT_PER_INPUT_BYTE = 1 << 20, 16  # characters of the rendered text
_MAX_REASON = 500  # characters of an error, because a template may raise one with any text
_GLOBALS = "cycler dict joiner namespace range"


def main(cpu_s: float, most_bytes: int, bytes_per_input_byte: int) -> None:
    """Answer requests. Each may use `cpu_s` seconds of processor time; the memory limit includes Python's own."""
    for line in sys.stdin.buffer:
        _limit(cpu_s, most_bytes + bytes_per_input_byte * len(line))
        request = json.loads(line)
        try:
            template = _compiled(request["source"])
            text = template.render(request["variables"]) if "variables" in request else ""
            if len(text) > _MAX_TEXT + _TEXT_PER_INPUT_BYTE * len(line):
                raise MemoryError
            answer = {"text": text}
        except MemoryError:
            return
        except Exception as error:  # the template may raise anything
            answer = {"reason": " ".join(str(error)[:_MAX_REASON].split()) or type(error).__name__}
        if "variables" in request:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def _limit(cpu_s: float, n_bytes: int) -> None:
    """Limit the memory, and the processor time from now on.

    Windows has neither limit, and macOS none for memory; there, the parent process checks.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the signal ends the process
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


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


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:]))
    os._exit(0)  # skip the interpreter's shutdown
