"""Constraints on answers: JSON schemas, grammars and regular expressions, for llguidance."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from specdec_cli.constraints.finite_schema import has_finite_value
from specdec_cli.decoding.errors import UsageError

_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, like Python's. Where only one text is possible, no decoding is needed."""
_NAMES = {"json_schema": "JSON schema", "grammar": "grammar", "regex": "regular expression"}
_FIXES = {
    "json_schema": "Use only the keywords that docs/constraints.md lists.",
    "grammar": "Use GBNF (root ::= ...) or Lark (start: ...).",
    "regex": "Use a regular expression without look-around or back-references.",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an answer. text: a JSON schema, a grammar in GBNF or Lark, or a regular expression."""

    kind: Literal["json_schema", "grammar", "regex"]
    text: str

    @classmethod
    def json_schema(cls, schema: str | dict[str, Any]) -> Grammar:
        return cls("json_schema", schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def rules(cls, text: str) -> Grammar:
        """A grammar in GBNF or Lark."""
        return cls("grammar", text)

    @classmethod
    def regex(cls, text: str) -> Grammar:
        return cls("regex", text)

    def compiled(self) -> str:
        """The grammar for llguidance. Raises UsageError if llguidance rejects it, or no text matches it."""
        return _compiled(self)


@lru_cache(maxsize=64)
def _compiled(grammar: Grammar) -> str:
    from llguidance import LLMatcher, LLTokenizer

    try:
        compiled = _converted(grammar)
        problem = LLMatcher.validate_grammar(compiled)
        if not problem and grammar.kind == "json_schema" and not has_finite_value(json.loads(grammar.text)):
            problem = "no text matches it"
    except Exception as error:  # a converter may raise anything
        problem = str(error) or type(error).__name__
    if problem:
        raise _refusal(grammar, problem)
    matcher = LLMatcher(LLTokenizer("byte"), compiled, log_level=0)
    if not any(matcher.compute_bitmask()) or (matcher.is_stopped() and not matcher.is_accepting()):
        raise _refusal(grammar, "no text matches it")
    return compiled


def _converted(grammar: Grammar) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "grammar":
        return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
    schema = json.loads(grammar.text)
    if schema is False:
        raise ValueError("no text matches it")
    if not isinstance(schema, dict) and schema is not True:
        raise ValueError("it is not a JSON object")
    return LLMatcher.grammar_from_json_schema({} if schema is True else schema, overrides=_LAYOUT)


def _refusal(grammar: Grammar, problem: str) -> UsageError:
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error:")), lines[0])
    return UsageError(f"this {_NAMES[grammar.kind]} cannot be used: {said[:200]}", _FIXES[grammar.kind])
