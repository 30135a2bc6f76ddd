"""Lookahead decoding: Jacobi iteration improves the window, and its n-grams and the text's are proposed."""

import numpy as np
from fakes import Counting, FakeTarget, Table, paths_of, run, steps_of, tokens_of

from specdec_cli.decoding.types import Step, Token
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.lookahead import LookaheadDrafter

ANY = FixedLength(400, whole=True)


def rows_of(table, context, draft):
    """What the pass that verifies a draft yields."""
    return np.stack([table.row([*context, *path]) for path in [(), *paths_of(draft)]])


def step_of(tokens, draft):
    return Step(1, tuple(Token(t, "", "plain") for t in tokens), draft.tokens, 0, (), draft.source, 0, 0, 0, 0)


def test_ngrams_of_the_window_and_of_the_text_are_proposed_where_they_begin():
    table, drafter, context = Table(9, 1), LookaheadDrafter(3, 3, 9, np.random.default_rng(0)), [3, 1, 4]
    drafter.start(tuple(context))
    draft = drafter.propose(context, 50, ANY)
    rows, paths = rows_of(table, context, draft), paths_of(draft)
    draft.row_observer(rows)
    following = {path: int(row.argmax()) for path, row in zip(paths, rows[1:], strict=True)}
    found = {(*(4, *path)[-2:], following[path]) for node, path in enumerate(paths) if node not in draft.parents}
    drafter.observe(step_of([8], draft))
    deepest = max(paths, key=len)
    improved = max(paths_of(drafter.propose([*context, 8], 50, ANY)), key=len)
    assert improved[-2:] == (deepest[-1], following[deepest]), "the window has moved on by what the pass yielded"
    for first, *rest in (*found, (3, 1, 4)):
        assert tuple(rest) in paths_of(drafter.propose([*context, first], 50, ANY))


def test_a_witness_that_fails_costs_no_token():
    class Failing(LookaheadDrafter):
        def _improve(self, logits):
            raise RuntimeError("out of order")

    drafter = Failing(5, 4, 5, np.random.default_rng(0))
    events = run(FakeTarget(Counting(6)), (0,), drafter, policy=ANY, max_tokens=30)
    assert tokens_of(events) == tokens_of(run(FakeTarget(Counting(6)), (0,), max_tokens=30))
    assert "out of order" in events[-1].notes[0]
    assert [bool(step.drafted) for step in steps_of(events)[:3]] == [False, True, False]
