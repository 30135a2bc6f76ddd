"""What holds for every drafter: the target's own text or its exact distribution, up to the end of everything."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from exactness import COMBINATIONS, EXACT, PLAIN, TEXTS, WRONG, compared, credulous, error_of_answers, own_text, pair
from fakes import FakeDraftModel, FakeTarget, Table, drafter_of, run, tokens_of
from test_draft_models import FakeHeads, Movable, Unmovable, reduced
from test_translated import respelled, translation, words
from timed import FLAT, FREE, STEEP, Timed

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.costs import Costs
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.draft_length.known_draft import KnownLength, WholeDraftLength
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.drafter_context import LookaheadShape
from specdec_cli.drafters.read_ahead import ReadAhead
from specdec_cli.drafters.short_memory import ShortMemory

PROMPT = (0, 2, 1, 0, 0, 2, 1, 0, 1, 0, 2, 1, 0)
"""Begins anew with what has come before, so that there is something to repeat from the first step on."""
CORPUS = Corpus.of([np.random.default_rng(4).integers(0, 4, 300).tolist()])
PREDICTION = np.random.default_rng(5).integers(0, 4, 60).tolist()
ANY = FixedLength(400, whole=True)


def ahead(model, wrapped=lambda model: model):
    """A draft model that reads on while the target verifies."""
    return ReadAhead(wrapped(model), model)


WAYS = {
    "model": {},
    "model, a tree": {"width": 3},
    "ngram": {},
    "ngram, a corpus": {"corpus": CORPUS},
    "ngram, a prediction": {"prediction": PREDICTION},
    "lookahead": {"lookahead": LookaheadShape(3, 3, 3)},
    "lookahead, deep": {"lookahead": LookaheadShape(1, 5, 2)},
    "model<ngram": {},
    "model<small": {},
    "ngram+model": {},
    "ngram+model, going on": {},
    "ngram+lookahead": {"lookahead": LookaheadShape(2, 3, 2)},
    "medusa": {"kind": FakeHeads},
    "medusa, a tree": {"kind": FakeHeads, "width": 3},
    "model, reduced": {"kind": reduced},
    "model, reduced, a tree": {"kind": reduced, "width": 3},
    "model, translated": {"kind": respelled},
    "model, forgetful": {"kind": lambda table: ShortMemory(Movable(table, n_ctx=16))},
    "model, forgetful, reading again": {"kind": lambda table: ShortMemory(Unmovable(table, n_ctx=24)), "width": 2},
    "model, ahead": {"kind": lambda table: ahead(FakeDraftModel(table))},
    "ngram+model, ahead": {"kind": lambda table: ahead(FakeDraftModel(table))},
    "model, forgetful, ahead": {"kind": lambda table: ahead(Movable(table, n_ctx=16), ShortMemory)},
    "model, forgetful, reading again, ahead": {"kind": lambda table: ahead(Unmovable(table, n_ctx=24), ShortMemory)},
}
EVERY = pytest.mark.parametrize("way", WAYS)
WRAPPED = [way for way in WAYS if "reduced" in way or "forgetful" in way]


def but_slow(*ways):
    """Every way, these in the slow tests."""
    each = [pytest.param(way, marks=[pytest.mark.slow] * (way in ways)) for way in WAYS]
    return pytest.mark.parametrize("way", each)


def made(way, draft, **options):
    options["translation"] = translation(*words(draft.n_vocab)) if "translated" in way else None
    small = draft.mixed(Table(draft.n_vocab, 77), 0.3)
    return drafter_of(way.split(",")[0], draft, **{"small": small, **options, **WAYS[way]})


class GoingOn(FixedLength):
    """Ends a draft of the draft model with all that its guide knows to follow in a passage."""

    extends, extended = True, 0

    def extend(self, drafted, confidences):
        GoingOn.extended += len(confidences)
        return len(confidences)


def length(way, k):
    """A draft length; lookahead drafts as much as it likes."""
    return ANY if "lookahead" in way else GoingOn(k + 1) if "going on" in way else FixedLength(k)


# The very text of the target


@EVERY
@TEXTS
def test_greedy_or_with_a_seed_the_text_is_the_targets_own(way, rule, sampling):
    def drafter(target, sampler):
        return made(way, target.mixed(Table(6, target.seed + 100), 0.3), sampler=sampler, draws=rule != "match")

    GoingOn.extended = 0
    steps = own_text(drafter, 6, rule, sampling, PROMPT, partial(length, way), 40, orders=(1, 2))
    assert {step.source for step in steps} == set(way.split(",")[0].split("+")), "nothing shows unless all draft"
    assert (GoingOn.extended > 3) == ("going on" in way), "nor unless a passage goes on"


@EVERY
@pytest.mark.parametrize("room", [1, 2, 5, 8])
def test_the_end_of_an_answer_and_of_every_context(way, room):
    """By length, by an end token, and by contexts of the target and of draft models that end in other places."""
    target = Table(9, 5, order=1)
    for ending in ({"max_tokens": room}, {"max_tokens": room + 9, "end": 3}):
        own, mine = (run(FakeTarget(target), PROMPT, drafter, 5, **ending) for drafter in (None, made(way, target)))
        assert tokens_of(mine) == tokens_of(own) and mine[-1].reason == own[-1].reason
    n_ctx = len(PROMPT) + room
    for shift in (-3, 0, 3):
        context = partial(FakeDraftModel, n_ctx=n_ctx + max(shift, 0))
        own, mine = (
            run(FakeTarget(target, n_ctx), PROMPT, drafter, policy=length(way, 5), max_tokens=99)
            for drafter in (None, made(way, target, kind=context))
        )
        assert tokens_of(mine) == tokens_of(own) and mine[-1].reason == own[-1].reason == "context"
        assert mine[-1].notes == ()


# Its distribution, over all outcomes


def over(way, draft, rule, wrapped=lambda drafter: drafter):
    """What makes a drafter, given a sampler and a generator."""
    return lambda sampler, rng: wrapped(made(way, draft, sampler=sampler, draws=rule == "rejection", rng=rng))


def step(way, rule, sampling=PLAIN, policy=None, **options):
    """One step of a drafter whose model resembles the target, after texts of which one goes on in a new way."""
    target, draft = pair(11, n_vocab=4)
    prompts = [(*PROMPT, token) for token in (0, 1, 3)]
    return compared(target, over(way, draft, rule, **options), policy or length(way, 3), sampling, rule, prompts)


@EVERY
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [("match", COMBINATIONS[5]), ("rejection", COMBINATIONS[4]), ("rejection", COMBINATIONS[5])],
)
def test_a_step_keeps_the_distribution(way, rule, sampling):
    GoingOn.extended = 0
    result = step(way, rule, sampling)
    assert bool(GoingOn.extended) == ("going on" in way)
    deep = 0.005 if "medusa" in way else 0.1  # a head does not know the tokens before its own
    assert result.error < EXACT and result.deep > deep


@pytest.mark.parametrize("way", WRAPPED)
def test_a_step_without_cuts_keeps_it(way):
    assert step(way, "rejection").error < EXACT


@but_slow(*WRAPPED, "model", "model, a tree", "model<small", "medusa, a tree")
def test_whole_answers_keep_it(way):
    """With `match` they are the target's own token for token, as is tested above."""
    target, draft = pair(11, n_vocab=3)
    drafter, make_policy = over(way, draft, "rejection"), lambda: length(way, 2)
    assert error_of_answers(target, drafter, make_policy, PLAIN, "rejection", prompt=PROMPT) < EXACT


@pytest.mark.parametrize("costs", [FLAT, STEEP])
@pytest.mark.parametrize(("way", "kind"), [("ngram", KnownLength), ("lookahead", WholeDraftLength)])
def test_a_length_that_is_learned_keeps_it(way, kind, costs):
    def make_policy():
        return Timed(costs, policy=kind(CostModel(costs, LONGEST), budget=LossBudget()))

    target, draft = pair(11, n_vocab=3)
    drafter = over(way, draft, "rejection")
    assert error_of_answers(target, drafter, make_policy, PLAIN, "rejection", prompt=PROMPT) < EXACT


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("way", ["medusa", "medusa, a tree"])
def test_a_length_that_is_learned_keeps_a_step_of_heads(way, rule):
    result = step(way, rule, policy=KnownLength(CostModel(Costs(FLAT.verify, FREE), 3)))
    assert result.error < EXACT and result.shapes


# Negative controls


@but_slow(*{*WAYS} - {"model", "ngram", "medusa", "model, translated"})
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_a_rule_that_believes_the_drafter_is_seen(way, rule, monkeypatch):
    monkeypatch.setitem(rules.RULES, rule, credulous)
    assert step(way, rule).error > WRONG


class Lying:
    """Reports as q what a function makes of a draft."""

    def __init__(self, lie, drafter):
        self.start, self._lie, self._drafter = drafter.start, lie, drafter

    def propose(self, context, budget, policy):
        draft = self._drafter.propose(context, budget, policy)
        return replace(draft, q=tuple(self._lie(draft)))


def claimed(draft):
    """As if tokens that were chosen had been drawn."""
    return [Categorical(None, np.full(4, 1 / 4)) for _ in draft.tokens]


@pytest.mark.parametrize(
    ("way", "lie"),
    [
        *((way, claimed) for way in ("ngram", "ngram, a corpus", "lookahead", "lookahead, deep")),
        ("model, reduced", lambda draft: [replace(q, probs=0.8 * q.probs + 0.2 / 4) for q in draft.q]),
        ("model, translated", lambda draft: [replace(q, probs=0.9 * q.probs) for q in draft.q]),
        ("medusa", lambda draft: draft.q[::-1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lying_q_is_seen(way, lie):
    """That of a choice, of tokens that the draft lacks, of before a mask, of another head."""
    assert step(way, "rejection", wrapped=partial(Lying, lie)).error > WRONG


@pytest.mark.parametrize("way", ["model<ngram", "model<small"])
def test_a_q_of_tokens_that_the_draft_model_never_judged_is_seen(way, monkeypatch):
    def gullible(p, draft, children, rng):
        return (children[0], draft.tokens[children[0]]) if children else (None, p.draw(rng))

    monkeypatch.setattr("specdec_cli.drafters.nested.judge", gullible)
    assert step(way, "rejection").error > WRONG


def test_a_rule_that_believes_what_has_no_counterpart_is_seen(monkeypatch):
    """Tokens that a draft model with another tokenizer did not draw, but had to add."""

    def believing(draft, rows, sampler, rng):
        verdict = accept.rejection(draft, rows, sampler, rng)
        place = len(verdict.path)
        if place < len(draft.tokens) and draft.q[place].probs.size == 1:
            return replace(verdict, path=(*verdict.path, place))
        return verdict

    monkeypatch.setitem(rules.RULES, "rejection", believing)
    assert step("model, translated", "rejection").error > WRONG
