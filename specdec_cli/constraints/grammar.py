"""Constraints on answers: JSON schemas, grammars and regular expressions, for llguidance."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from specdec_cli.bounded_child import BoundedChild, Limits
from specdec_cli.decoding.errors import UsageError

MAX = Limits(cpu_s=1.0, most_bytes=256 << 20, bytes_per_input_byte=256, nice=10)
"""The limits within which a constraint must compile."""
QUICK = Limits(cpu_s=0.1, most_bytes=32 << 20, bytes_per_input_byte=64)
"""Limits that most constraints don't reach by far."""
_MAX_TEXT = 256 << 10
_MAX_KEPT = 8 << 20
_NAMES = {"json_schema": "JSON schema", "grammar": "grammar", "regex": "regular expression"}
_FIXES = {
    "json_schema": "Use only the keywords that docs/constraints.md lists.",
    "grammar": "Use GBNF (root ::= ...) or Lark (start: ...).",
    "regex": "Use a regular expression without look-around or back-references.",
}


class GrammarTooLarge(UsageError):
    """A constraint that doesn't compile within the limits of time, memory and length."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an answer. text: a JSON schema, a grammar in GBNF or Lark, or a regular expression."""

    kind: Literal["json_schema", "grammar", "regex"]
    text: str
    matchers: WeakKeyDictionary[Any, Any] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )
    """llguidance's matchers by vocabulary, which `grammar_state` makes."""

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

    def __reduce__(self) -> tuple[type[Grammar], tuple[str, str]]:
        return Grammar, (self.kind, self.text)

    def compiled(self, limits: Limits = MAX, stopped: Callable[[], bool] = lambda: False) -> str:
        """The grammar for llguidance, which has compiled it in a child process within the limits.

        Raises UsageError if llguidance rejects it or no text matches it, GrammarTooLarge, or Interrupted once `stopped`
        returns True.
        """
        if len(self.text) > _MAX_TEXT:
            what = f"this {self._name} cannot be used: it has {len(self.text):,} characters of at most {_MAX_TEXT:,}"
            raise GrammarTooLarge(what, "Make it shorter.")
        with _lock:
            if known := _compiled.get(self):
                _compiled.move_to_end(self)
        if known is None:
            known = self._compiled_anew(limits, stopped)
        elif known.limits.cpu_s > limits.cpu_s:
            raise self._too_large()
        return known.text

    def _compiled_anew(self, limits: Limits, stopped: Callable[[], bool]) -> _Compiled:
        try:
            child = _child(limits)
            child.start()
            import_module("specdec_cli.constraints.grammar_state")  # needed next, and the child takes as long to start
            answer = child.ask({"kind": self.kind, "text": self.text}, stopped)
        except OSError as error:
            answer = {"reason": f"its process cannot run: {error.strerror}"}
        if not answer:
            raise self._too_large()
        if "grammar" not in answer:
            lines = [line.strip() for line in answer["reason"].splitlines() if line.strip()]
            said = next((line for line in lines if line.startswith("error:")), lines[0])
            raise UsageError(f"this {self._name} cannot be used: {said[:200]}", _FIXES[self.kind])
        known = _Compiled(answer["grammar"], limits)
        _keep(Grammar(self.kind, self.text), known)  # a copy, because `self` keeps its matchers alive
        return known

    @property
    def _name(self) -> str:
        return _NAMES[self.kind]

    def _too_large(self) -> GrammarTooLarge:
        return GrammarTooLarge(f"this {self._name} takes too much time or memory to compile", "Make it simpler.")


class _Compiled(NamedTuple):
    """A grammar for llguidance, and the limits within which it was compiled."""

    text: str
    limits: Limits


_compiled: OrderedDict[Grammar, _Compiled] = OrderedDict()
"""The grammars that were used last, up to `_MAX_KEPT` characters."""
_lock = Lock()


def _keep(grammar: Grammar, compiled: _Compiled) -> None:
    with _lock:
        _compiled[grammar] = compiled
        kept = sum(len(each.text) + len(known.text) for each, known in _compiled.items())
        while kept > _MAX_KEPT and len(_compiled) > 1:
            each, known = _compiled.popitem(last=False)
            kept -= len(each.text) + len(known.text)


@cache
def _child(limits: Limits) -> BoundedChild:
    """A child for each kind of limits, so that what takes long doesn't delay what doesn't."""
    return BoundedChild("specdec_cli.constraints.grammar_child", limits)
