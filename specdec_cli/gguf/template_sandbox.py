"""The sandbox of a chat template: a template is foreign code, and may take only so much time and memory.

Every value that a template makes (with an operator, a filter, a call, a literal, a block of text) goes through
`Meter.admit`, which pays for it from an allowance of bytes and refuses one that is large. So a template cannot hold
more than its allowance. A step whose result is at most `_GROWTH` times as large as its input cannot take more than
that in between. The few others say how large their result will be before they make it.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, soft_str

from specdec_cli.gguf.template_meter import MOST_BITS, SIZES, WIDEST, Meter

_LONGEST = 48 << 10  # characters of a template; those in use have up to 30,000

# What templates in use need, and other programs that render them know. What is for web pages is left out.
_FILTERS = """
    abs attr capitalize count d default dictsort e escape first float format groupby indent int items join last length
    list lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title trim
    truncate unique upper
"""
_TEXT_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower isnumeric
    isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition
    rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_GLOBALS = "cycler dict joiner range"

# Filters that a template cannot name in its text.
_STEPPED, _ADMITTED, _WRITTEN = "a step", "a value", "a text"


def render(source: str, variables: Mapping[str, Any], stopped: Callable[[], bool] = lambda: False) -> str:
    """What a template makes of variables. stopped: asked at every step; Interrupted is raised when it says so.

    Raises any other exception, too, as the template causes it.
    """
    if len(source) > _LONGEST:
        raise TemplateError(f"it has {len(source):,} characters, the most is {_LONGEST:,}")
    code = _compiled(source)
    meter = Meter(stopped, variables)
    sandbox = _Sandbox(meter)
    template = Template.from_code(sandbox, code, sandbox.globals)
    return "".join(map(meter.spend_on, template.generate(variables)))


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> CodeType:
    """A template's code, in which each step that the sandbox does not see by itself is led through it."""
    sandbox = _Sandbox(Meter(lambda: False, {}))
    return sandbox.compile(_Instrumented().visit(sandbox.parse(source)))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a meter in it; for one rendering."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, meter: Meter) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.text)
        for extension in (LoopControlExtension, _Generation):
            self.add_extension(extension)
        self.meter = meter
        self.concat = self._concat  # type: ignore[method-assign]
        filters: dict[str, Callable[..., Any]] = {name: self.filters[name] for name in _FILTERS.split()}
        filters |= {"tojson": _tojson, "format": self._format}
        self.filters = {name: self._metered(name, function) for name, function in filters.items()}
        self.filters |= {_STEPPED: meter.spend, _ADMITTED: meter.admit, _WRITTEN: self.text}
        self.tests = {name: self._metered(name, test) for name, test in self.tests.items()}
        self.globals = {name: self.globals[name] for name in _GLOBALS.split()}
        self.globals |= {"namespace": _Namespace, "raise_exception": _refuse, "strftime_now": _strftime_now}

    def text(self, value: Any) -> str:
        """A value as `{{ }}` and `~` write it."""
        text = value if isinstance(value, str) else str(value)
        self.meter.spend(2 * sys.getsizeof(text))  # it will be part of another
        return text

    def _concat(self, pieces: Iterable[str]) -> Any:
        """The text of a macro or a block."""
        return self.meter.admit("".join(map(self.meter.spend_on, pieces)))

    def _metered(self, name: str, function: Any) -> Callable[..., Any]:
        """The same filter or test, whose result is admitted."""
        before = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            args = tuple(list(each) if isinstance(each, map) else each for each in args)
            self._foresee(name, *args[before:], **named)
            return self.meter.admit(function(*args, **named))

        return run

    def _foresee(self, name: str, *args: Any, **named: Any) -> None:
        if name in SIZES:
            self.meter.require(SIZES[name](*args, **named))

    def _format(self, text: str, *args: Any, **named: Any) -> Any:
        return self._percent(soft_str(text), named or args)

    def _percent(self, text: str, values: Any) -> Any:
        """The operator % of texts, whose numbers are widths; for * they are among the values."""
        widths = sum(map(int, re.findall(r"\d+", text)))
        if "*" in text and isinstance(values, tuple):
            widths += sum(abs(each) for each in values if isinstance(each, int))
        self.meter.require(4 * widths + text.count("%") * (10 * self.meter.weight(values) + MOST_BITS))
        return text % values

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute; of texts and numbers only those known to be harmless."""
        if isinstance(obj, str):
            return attr in _TEXT_METHODS.split()
        return not isinstance(obj, (int, float)) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, each field of which is paid for."""
        text = _text_of(value)
        if text is None or value.__name__ != "format":
            return None
        formatter = _MarkupFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)
        return lambda *args, **named: type(text)(formatter.vformat(text, args, named))

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Call a function, a method or a macro, whose arguments may have any other names."""
        args = tuple(list(each) if isinstance(each, map) else each for each in args)
        given = (value for name, value in named.items() if name not in ("_loop_vars", "_block_vars"))  # Jinja's own
        for value in (*args, *given):
            __self.meter.require(__self.meter.weight(value))  # a macro may keep them in a tuple: no nesting without end
        if (text := _text_of(__obj)) is not None:
            __self._foresee(f".{__obj.__name__}", text, *args)
        return __self.meter.admit(super().call(__context, __obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do arithmetic."""
        if operator == "%" and isinstance(left, str):
            return self.meter.admit(self._percent(left, right))
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(many, (int, float)):
                    self.meter.require(sys.getsizeof(many) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.meter.require(math.inf if left.bit_length() * right > MOST_BITS else 0)
        return self.meter.admit(super().call_binop(context, operator, left, right))


def _text_of(method: Any) -> str | None:
    """The text that a method is bound to."""
    owner = method.__self__ if isinstance(method, (MethodType, BuiltinMethodType)) else None
    return owner if isinstance(owner, str) else None


class _Formatter(SandboxedFormatter):
    """`str.format`, which pays for each field."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if re.search(r"\d{4}", format_spec):
            raise TemplateError("a format is too wide")
        return str(self._env.text(super().format_field(value, format_spec)))  # type: ignore[attr-defined]


class _MarkupFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


class _Instrumented(NodeTransformer):
    """Leads through the meter what the sandbox does not see: turns of loops, `~`, literals and slices."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For):
            turn = _through(_STEPPED, nodes.Const(0, lineno=node.lineno))
            node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        elif isinstance(node, nodes.Concat):
            node.nodes = [_through(_WRITTEN, part) for part in node.nodes]
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node.node = _through(_ADMITTED, node.node)  # Python warns of a number that is sliced, if it sees one
            return _through(_ADMITTED, node)
        elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
            return _through(_ADMITTED, node)
        return node


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """The tag that marks the assistant's words for training; for writing a prompt its body is just text."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Jinja's, which is printed without what is in it: that could be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _tojson(value: Any, indent: Any = None, **_: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    if len(form) > WIDEST:
        raise TemplateError("the form of a date is too long")
    return datetime.datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
