"""Lookahead decoding: the window is what Jacobi iteration makes of it, and its n-grams and the text's are kept."""

import numpy as np
import pytest
from fakes import Counting, FakeTarget, Table, paths_of, run, steps_of, tokens_of

from specdec_cli.decoding.types import NO_DRAFT, Step, Token
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.lookahead import LookaheadDrafter

SIZES = [(7, 4, 7), (5, 3, 5), (1, 2, 1), (1, 5, 3), (4, 2, 2), (3, 7, 1)]
ANY = FixedLength(400, whole=True)


def lookahead(window, size, candidates, seed=0):
    return LookaheadDrafter(window, size, candidates, np.random.default_rng(seed))


def most(window, size, candidates):
    """Tokens of the largest draft."""
    return (window + candidates) * (size - 1) - 1


def rows_of(table, context, draft):
    """What the pass that verifies a draft yields."""
    return np.stack([table.row([*context, *path]) for path in [(), *paths_of(draft)]])


def step_of(tokens, draft=NO_DRAFT):
    return Step(1, tuple(Token(t, "", "plain") for t in tokens), draft.tokens, 0, (), draft.source, 0, 0, 0, 0)


class Reference:
    """The same, thought of otherwise: a guess of each level for each place of the text, and one list of n-grams."""

    def __init__(self, window, size, candidates, seed):
        self.window, self.size, self.candidates = window, size, candidates
        self.rng = np.random.default_rng(seed)
        self.guesses, self.grams, self.read, self.text = {}, [], 0, []

    def fill(self, pending):
        """Guess what is not guessed yet: level j is about the places j, j + 1 ... after the pending token."""
        self.guesses = {
            (level, place): self.guesses[level, place]
            if (level, place) in self.guesses
            else int(self.text[int(self.rng.integers(len(self.text)))])
            for level in range(self.size - 1)
            for place in range(pending + level, pending + level + self.window)
        }

    def expected(self, context):
        """The paths of a draft that may be as long as it likes, in the order of the siblings."""
        for end in range(max(self.read, self.size), len(context) + 1):
            self.grams.append(tuple(context[end - self.size : end]))
        self.read, self.text = len(context) + 1, list(context)
        pending = len(context) - 1
        self.guesses[0, pending] = context[-1]
        paths = [gram[1:] for gram in self.known(context[-1])]
        for column in range(self.window):
            paths.append(tuple(self.column(pending, column)[1:]))
        return paths

    def known(self, first):
        """The n-grams that begin with a token, each once, the latest first."""
        return list(dict.fromkeys(gram for gram in reversed(self.grams) if gram[0] == first))[: self.candidates]

    def column(self, pending, column):
        """What is read for one column: the text's token, the first guesses up to it, then its own."""
        lead = [self.guesses[0, pending + i] for i in range(column + 1)]
        return lead + [self.guesses[level, pending + column + level] for level in range(1, self.size - 1)]

    def improve(self, table, context):
        pending = len(context) - 1
        found = {}
        for column in range(self.window):
            read = self.column(pending, column)
            token = int(table.row([*context[:-1], *read]).argmax())
            self.grams.append((*read[column:], token))
            found[self.size - 2, pending + column + self.size - 1] = token
        for (level, place), token in self.guesses.items():
            if level:
                found[level - 1, place] = token
        self.guesses = found


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_jacobi_iteration(size, order):
    """After passes that accept none, some or all, and after steps that were another's, against the reference."""
    for seed in range(6):
        table, rng = Table(9, seed, order=order), np.random.default_rng([seed, order])
        mine, reference = lookahead(*size, seed), Reference(*size, seed)
        context = [3, 1, 4]
        mine.start(tuple(context))
        reference.text = list(context)
        reference.fill(len(context) - 1)
        for _ in range(40):
            if rng.random() < 0.25:  # another drafter of a chain, or a rest: nothing of ours was in the pass
                draft = NO_DRAFT
            else:
                draft = mine.propose(context, most(*size), ANY)
                expected = reference.expected(context)
                whole = {path[:n] for path in expected for n in range(1, len(path) + 1)}
                assert set(paths_of(draft)) == whole
                assert [path[:1] for path in paths_of(draft) if len(path) == 1] == list(
                    dict.fromkeys(path[:1] for path in expected if path)
                )
                if draft.tokens:
                    draft.row_observer(rows_of(table, context, draft))
                    reference.improve(table, context)
            news = rng.integers(9, size=rng.choice([1, 1, 2, 3, size[0], size[0] + 4])).tolist()
            reference.text = list(context) if draft.tokens else reference.text
            context.extend(news)
            reference.text = context if mine._fillers is context else reference.text
            mine.observe(step_of(news, draft))
            reference.fill(len(context) - 1)
            assert mine._guesses[0][1:] == [reference.guesses[0, len(context) - 1 + i] for i in range(1, size[0])]


@pytest.mark.parametrize("size", SIZES)
def test_siblings_differ_and_the_budget_is_kept(size):
    table, rng = Table(4, 1), np.random.default_rng(2)
    drafter, context, window = lookahead(*size), [0, 1, 2, 3, 0, 1], size[0] * (size[1] - 1) - 1
    drafter.start(tuple(context))
    drafted = 0
    for _ in range(120):
        budget = int(rng.integers(1, most(*size) + 3))
        draft = drafter.propose(context, budget, ANY)
        places = list(zip(draft.parents or (), draft.tokens, strict=True))
        assert len(places) == len(set(places)) == len(draft.tokens) <= budget
        assert not draft.tokens or budget >= window, "the one is of no use without the other"
        leaves = set(range(len(draft.tokens))) - set(draft.parents or ())
        assert len(leaves) <= size[0] + size[2], "there is a sequence for each branch, and no more"
        drafted += bool(draft.tokens)
        if draft.tokens:
            draft.row_observer(rows_of(table, context, draft))
        context.append(int(rng.integers(4)))
        drafter.observe(step_of(context[-1:], draft))
    assert drafted > 10
    assert max(len(found) for found in drafter._pool.values()) == min(size[2], 4 ** (size[1] - 1))


def test_a_policy_that_wants_nothing_gets_nothing_and_the_window_moves_on():
    class No(FixedLength):
        def should_draft(self, drafted, confidence, candidate=None):
            return False

    drafter = lookahead(3, 3, 2)
    drafter.start((1, 2, 3))
    before = [list(level) for level in drafter._guesses]
    assert drafter.propose([1, 2, 3], 50, No(1)) is NO_DRAFT
    drafter.observe(step_of([4, 5]))
    assert [level[:1] for level in drafter._guesses] == [level[2:] for level in before]


def test_a_witness_that_fails_costs_no_token():
    class Failing(LookaheadDrafter):
        def _improve(self, logits):
            raise RuntimeError("out of order")

    drafter = Failing(5, 4, 5, np.random.default_rng(0))
    events = run(FakeTarget(Counting(6)), (0,), drafter, policy=ANY, max_tokens=30)
    assert tokens_of(events) == tokens_of(run(FakeTarget(Counting(6)), (0,), max_tokens=30))
    assert "out of order" in events[-1].notes[0]
    assert [bool(step.drafted) for step in steps_of(events)[:3]] == [False, True, False]
