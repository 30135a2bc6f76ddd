"""What bounds an answer besides its length: strings that end it, and a grammar that it must keep to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.constraint import Constraint
from specdec_cli.llama.model import Model


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """stop: strings that end the answer. written: so many tokens of it end its prompt."""

    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    written: int = 0

    def constraint(self, model: Model) -> Constraint | None:
        """What follows the answer; one that begins anew."""
        if self.grammar is None:
            return None
        from specdec_cli.constraints.grammar_state import GrammarState

        return GrammarState(model, self.grammar, self.written)


NO_BOUNDS = AnswerBounds()
