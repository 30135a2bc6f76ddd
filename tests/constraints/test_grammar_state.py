"""A state of a grammar follows text and drafts, forward and back, and binds nothing while a model thinks."""

import random
import weakref

import pytest
from schemas import thing
from test_translated import Longest

from specdec_cli import Grammar
from specdec_cli.constraints.grammar_state import GrammarState, matcher_of
from specdec_cli.decoding.errors import SpecdecError, UsageError

PIECES = [
    *(bytes([byte]) for byte in range(256)),
    *(b"yes", b"no", b"maybe", b'{"', b'":', b' "', b"name", b"na", b"me", b'"}', b"12", b"34"),
    b"<|start|>",
]
THINK, THOUGHT, END = range(len(PIECES), len(PIECES) + 3)
THINKS, CHANNELS = ("<think>", "</think>"), ("<|channel|>", "<|message|>")


class Words(Longest):
    """A small vocabulary: all bytes, some words, and tokens that begin and end thinking and the answer."""

    n_vocab = len(PIECES) + 3

    def __init__(self, marks=(), ends=(END,)):
        super().__init__(PIECES)
        self._special = dict(zip(marks, ([THINK], [THOUGHT]), strict=False))
        self._ends = ends

    def piece(self, token):
        return PIECES[token] if token < len(PIECES) else b""

    def is_end(self, token):
        return token in self._ends

    def tokenize(self, text, add_bos=True, special=True):
        return self._special[text] if special and text in self._special else super().tokenize(text)


def state(grammar, context=(), prompt_tokens=0, **words):
    bound = GrammarState(Words(**words), grammar)
    context = [*context]
    bound.begin(context, prompt_tokens)
    return bound, context


def pieces(mask):
    return {PIECES[token] if token < len(PIECES) else token for token in mask.nonzero()[0].tolist()}


def ids(*texts):
    return [PIECES.index(text) for text in texts]


def test_what_may_follow():
    bound, context = state(Grammar.regex("(yes|no|maybe)"))
    assert pieces(bound.mask()) == {b"y", b"n", b"m", b"yes", b"no", b"maybe"}
    assert bound.forced() is None
    assert pieces(bound.mask(ids(b"m"))) == {b"a"}
    context += ids(b"n")
    assert pieces(bound.mask()) == {b"o"}
    assert bound.forced() == ids(b"o")[0]
    context += ids(b"o")
    assert bound.forced() == END, "nothing else can follow: the answer ends without a pass"


def test_of_several_end_tokens_the_same_follows_a_draft_and_a_token_of_the_target():
    bound, context = state(Grammar.regex("no"), ends=(THINK, END))
    assert pieces(bound.mask(ids(b"n", b"o"))) == {min(THINK, END)}
    context += ids(b"n", b"o")
    assert bound.forced() == min(THINK, END)


def test_the_end_is_allowed_exactly_where_the_grammar_ends():
    bound, context = state(Grammar.regex("1(12)*"))
    assert not bound.mask()[END]
    for token, may_end in zip(ids(b"1", b"12", b"1", b"2"), (True, True, False, True), strict=True):
        context.append(token)
        assert bound.mask()[END] == may_end


def test_drafts_are_followed_and_taken_back():
    """After any sequence of looks ahead, masks are those of a state that has seen nothing else."""
    grammar = Grammar.json_schema(thing({"name": {"enum": ["yes", "no"]}}))
    bound, context = state(grammar)
    draw = random.Random(5)
    for _ in range(12):
        for _ in range(10):
            ahead = []
            while draw.random() < 0.7 and len(ahead) < 8:
                mask = bound.mask(ahead)
                if mask is None or draw.random() < 0.1:
                    ahead.append(draw.randrange(len(PIECES)))
                else:
                    ahead.append(draw.choice(mask.nonzero()[0].tolist()))
            fresh, _ = state(grammar, context)
            mine, theirs = bound.mask(ahead), fresh.mask(ahead)
            assert (mine is None) == (theirs is None)
            assert mine is None or (mine == theirs).all()
        if bound.forced() == END:
            break
        context.append(draw.choice(bound.mask().nonzero()[0].tolist()))
    assert bound.forced() == END


def test_drafts_are_cut_where_something_is_forbidden():
    bound, _ = state(Grammar.regex("(yes|no)12"))
    assert bound.allowed(ids(b"yes", b"12")) == 2
    assert bound.allowed(ids(b"yes", b"1", b"2")) == 1, "what must come is bound to its usual spelling"
    assert bound.allowed([10**6]) == 0


def test_what_must_come_is_expected_as_the_tokens_that_usually_spell_it():
    bound, context = state(
        Grammar.json_schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    )
    assert bound.expected(9) == ids(b'{"', b"name", b'":', b' "')
    assert bound.expected(2) == ids(b'{"', b"name")
    context += ids(b'{"', b"name", b'":', b' "')
    assert bound.expected(9) == []


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ([], [THINK, *ids(b"{", b"no"), THOUGHT]),
        ([THINK], [*ids(b"{", b"no"), THOUGHT]),
        ([END, *ids(b"me"), THINK, *ids(b"\n")], [*ids(b"{", b"no"), THOUGHT]),
        ([THINK, THOUGHT], []),
    ],
    ids=["begun by the model", "begun by the prompt", "begun after a role", "ended by the prompt"],
)
def test_thinking_is_free_and_its_end_binds_also_within_a_draft(prompt, answer):
    bound, context = state(Grammar.regex("yes"), prompt, len(prompt), marks=THINKS)
    for place, token in enumerate(answer):
        mask = bound.mask(answer[:place])
        assert mask is None or mask[token]
    assert bound.allowed([*answer, *ids(b"yes"), END]) == len(answer) + 2
    assert bound.allowed([*answer, *ids(b"no")]) == len(answer), "what follows the end of thinking in a draft is bound"
    assert pieces(bound.mask(answer)) == {b"y", b"yes"} or pieces(bound.mask(answer)) == {b"yes"}
    context += answer
    assert bound.mask(ids(b"no")) is None, "beyond what is forbidden nothing is asked"
    assert bound.allowed(ids(b"no")) == 0


def test_the_answer_does_not_end_within_thoughts():
    bound, _ = state(Grammar.regex("yes"), [THINK], 1, marks=THINKS)
    assert pieces(~bound.mask()) == {END}
    assert bound.allowed([*ids(b"no"), END]) == 1, "nor by a draft"


@pytest.mark.parametrize("written", [0, 5, 15])
@pytest.mark.parametrize("turns", [1, 2])
def test_of_several_messages_only_the_final_one_is_bound(turns, written):
    words = Words(CHANNELS)
    name = words.tokenize

    def message(head, text):
        return [*name(f"<|start|>{head[0]}"), *([THINK, *name(head[1])] if head[1:] else ()), THOUGHT, *name(text)]

    asked = message(["user"], "no")
    prompt = [*asked, *((turns - 1) * [*message(["assistant", "final"], "yes"), *asked]), *name("<|start|>assistant")]
    answer = [THINK, *name("analysis"), THOUGHT, *ids(b"no"), *message(["assistant", "final json"], "")]
    bound, context = state(Grammar.regex("yes"), prompt, len(prompt), marks=CHANNELS)
    assert pieces(bound.mask()) == {THINK, b"yes"}
    context += answer[:written]
    assert bound.allowed([*answer[written:], *ids(b"yes"), END]) == len(answer) - written + 2
    assert bound.allowed([*answer[written:], *ids(b"no")]) == len(answer) - written


def test_a_mark_in_an_earlier_message_frees_nothing():
    prompt = [THINK, *ids(b"no"), END, *ids(b"me")]
    bound, _ = state(Grammar.regex("yes"), prompt, len(prompt), marks=THINKS)
    assert pieces(bound.mask()) == {THINK, b"yes"}


def test_a_vocabulary_without_an_end_cannot_be_bound():
    with pytest.raises(UsageError, match="needs an end token"):
        GrammarState(Words(ends=()), Grammar.regex("a"))


@pytest.mark.slow
def test_a_grammar_that_exceeds_a_limit_at_a_token_binds_no_less():
    """llguidance gives up at the first digit; the answer must not go on without the grammar."""
    bound, context = state(Grammar.json_schema({"enum": [{"a": i} if i % 2 else i for i in range(4500)]}))
    context.append(ord("1"))
    with pytest.raises(SpecdecError, match="too large"):
        bound.mask()


def test_the_matchers_of_a_grammar_go_with_it():
    grammar, words = Grammar.regex("gone|with it"), Words()
    matcher_of(words, grammar)
    matchers = weakref.ref(grammar.matchers)
    del grammar
    assert matchers() is None
