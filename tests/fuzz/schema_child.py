"""What `test_schemas` runs in a child."""

import sys

from fuzzing_child import used

from specdec_cli import Grammar
from specdec_cli.cli.error_reporting import complain
from specdec_cli.constraints.grammar_state import GrammarState
from specdec_cli.decoding.errors import SpecdecError


class Letters:
    """A vocabulary of the bytes, and one token that ends an answer."""

    n_vocab = 257

    def piece(self, token):
        return bytes([token]) if token < 256 else b""

    def is_end(self, token):
        return token == 256

    def tokenize(self, text, add_bos=True, special=True):
        return [*text.encode()]


def answered(kind: str, text: str) -> None:
    """What `run` does with a constraint, and the masks of the first tokens of an answer."""
    grammar = {"json": Grammar.json_schema, "regex": Grammar.regex, "grammar": Grammar.rules}[kind](text)
    try:
        grammar.compiled()
        state, context = GrammarState(Letters(), grammar), [0]
        state.begin(context, 1)
        before = used()[0]
        for _ in range(40):
            mask = state.mask()
            assert mask is not None
            state.expected(8)
            context.append(int(mask.nonzero()[0][len(context) % mask.sum()]))
            if context[-1] == 256:
                break
        print(used()[0] - before)
    except SpecdecError as error:
        complain(error)
        sys.exit(error.exit_code)
