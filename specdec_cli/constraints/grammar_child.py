"""What grammar's child process does: it compiles constraints with llguidance, which some make run for minutes, use
gigabytes or crash.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from specdec_cli.constraints.finite_schema import has_finite_value

_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, like Python's. Where only one text is possible, no decoding is needed."""
_STACK_BYTES = 1 << 20
"""The stack of the thread that compiles. llguidance crashes if a grammar needs more; the parent process has more."""
_NONE = "no text matches it"
_MAX_REASON = 2000

threading.stack_size(_STACK_BYTES)


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

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if not answers:
        raise MemoryError
    return answers[0]


def _compiled(kind: str, text: str) -> dict[str, str]:
    grammar = _converted(kind, text)
    problem = LLMatcher.validate_grammar(grammar)
    if not problem and kind == "json_schema" and not has_finite_value(json.loads(text)):
        problem = _NONE
    if not problem:
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        if not any(matcher.compute_bitmask()) or (matcher.is_stopped() and not matcher.is_accepting()):
            error = matcher.get_error()
            problem = error if "limit" in error else _NONE
    return {"reason": problem[:_MAX_REASON]} if problem else {"grammar": grammar}


def _converted(kind: str, text: str) -> str:
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    schema = json.loads(text)
    if schema is False:
        raise ValueError(_NONE)
    if not isinstance(schema, dict) and schema is not True:
        raise ValueError("it is not a JSON object")
    return LLMatcher.grammar_from_json_schema({} if schema is True else schema, overrides=_LAYOUT)
