"""What grammar's child process does: it compiles constraints with llguidance, which some make run for minutes, use
gigabytes or crash.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import threading
from importlib.machinery import PathFinder
from typing import Any

from specdec_cli.constraints.finite_schema import has_finite_value
from specdec_cli.constraints.gbnf import gbnf_to_lark, is_gbnf
from specdec_cli.constraints.supported_schema import read_schema, supported

_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, like Python's. Where only one text is possible, no decoding is needed."""
_STACK_BYTES = 1 << 20
"""The stack of the thread that compiles. llguidance crashes if a grammar needs more; the parent process has more."""
_NONE = "no text matches it"
_ONE_OF = "oneOf works only where it is plain that no value fits two of its alternatives; anyOf has no such limit"
_MAX_REASON = 2000


def answer(request: dict[str, str], _n_bytes: int) -> dict[str, str]:
    """The `grammar` for llguidance of a constraint, or the `reason` for a failure."""
    answers: list[dict[str, str]] = []

    def work() -> None:
        try:
            answers.append(_compiled(request["kind"], request["text"]))
        except MemoryError:
            pass
        except RecursionError:
            answers.append({"reason": "it is nested too deeply"})
        except BaseException as error:  # a converter may raise anything, and a panic of llguidance is no Exception
            answers.append({"reason": (str(error) or type(error).__name__)[:_MAX_REASON]})

    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if not answers:
        raise MemoryError
    return answers[0]


def _compiled(kind: str, text: str) -> dict[str, str]:
    core = _part("_lib")
    grammar = _converted(kind, text, core.LLMatcher)
    problem = core.LLMatcher.validate_grammar(grammar)
    if "coerce_one_of" in problem:
        problem = _ONE_OF
    if not problem and kind == "json_schema" and not has_finite_value(json.loads(text)):
        problem = _NONE
    if not problem:
        matcher = core.LLMatcher(core.LLTokenizer("byte"), grammar, log_level=0)
        if not any(matcher.compute_bitmask()) or (matcher.is_stopped() and not matcher.is_accepting()):
            error = matcher.get_error()
            problem = error if "limit" in error else _NONE
    return {"reason": problem[:_MAX_REASON]} if problem else {"grammar": grammar}


@functools.cache
def _part(name: str) -> Any:
    """A module of llguidance alone: what the package imports takes most of the time in which this process starts."""
    package = importlib.util.find_spec("llguidance")
    spec = PathFinder.find_spec(name, package.submodule_search_locations if package else None)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _converted(kind: str, text: str, matcher: Any) -> str:
    """The constraint in the form of llguidance. matcher: its class LLMatcher."""
    if kind == "regex":
        return str(matcher.grammar_from_regex(text))
    if kind == "grammar":
        lark = f"%llguidance {{}}\n\n{gbnf_to_lark(text, _part('gbnf_to_lark'))}" if is_gbnf(text) else text
        return str(matcher.grammar_from_lark(lark))
    schema = read_schema(text)
    if schema is False:
        raise ValueError(_NONE)
    if not isinstance(schema, dict) and schema is not True:
        raise ValueError("it is not a JSON object")
    given = {} if schema is True else supported(schema, schema, one_of="/oneOf/" not in text)
    return str(matcher.grammar_from_json_schema(given, overrides=_LAYOUT))
