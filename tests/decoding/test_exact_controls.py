"""Negative controls: each of these mistakes is easily made, and is seen over all outcomes or by the statistic."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from exactness import (
    COMBINATIONS,
    EXACT,
    PLAIN,
    WRONG,
    Whims,
    check,
    credulous,
    error_of_answers,
    pair,
    tree_step,
    with_a_model,
)

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.accept import without
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters import tree
from specdec_cli.drafters.draft_model import ModelDrafter


class Liar(ModelDrafter):
    """Honest drafts, of which something is reported wrongly."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        chain = tuple(range(-1, len(draft.tokens) - 1))
        return self.lie(replace(draft, parents=draft.parents or chain)) if draft.tokens else draft

    def elders(self, draft, node):
        return [i for i in draft.children(draft.parents[node]) if i < node]

    def only(self, draft, nodes):
        """The draft of some of its nodes, in their order."""
        place = {-1: -1} | {node: new for new, node in enumerate(nodes)}
        tokens, q = (tuple(values[node] for node in nodes) for values in (draft.tokens, draft.q))
        return Draft(tokens, q, "", tuple(place[draft.parents[node]] for node in nodes))


class WrongQ(Liar):
    """Reports a q that is off from what it drew from by a total variation of 0.05 or so."""

    def lie(self, draft):
        tilted = [q.probs.astype(float) * np.where(np.arange(q.probs.size) % 2, 1.25, 1.0) for q in draft.q]
        return replace(
            draft, q=tuple(Categorical(q.ids, probs / probs.sum()) for q, probs in zip(draft.q, tilted, strict=True))
        )


class SameQForAll(Liar):
    def lie(self, draft):
        first = [(*self.elders(draft, node), node)[0] for node in range(len(draft.tokens))]
        return replace(draft, q=tuple(draft.q[node] for node in first))


class NotNormalised(Liar):
    def lie(self, draft):
        found = []
        for node, q in enumerate(draft.q):
            elders = self.elders(draft, node)
            left = 1.0 - sum(draft.q[elders[0]].prob(draft.tokens[elder]) for elder in elders) if elders else 1.0
            found.append(Categorical(q.ids, q.probs * left))
        return replace(draft, q=tuple(found))


class DropsTheUnlikely(Liar):
    """Throws away what turned out to be improbable, with all that hangs on it and comes after it."""

    def lie(self, draft):
        kept = []
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            likely = draft.q[node].prob(token) > 0.5 or node == 0
            if likely and parent in (-1, *kept) and all(elder in kept for elder in self.elders(draft, node)):
                kept.append(node)
        return self.only(draft, kept)


class YoungestFirst(Liar):
    """Siblings are offered in another order than they were drawn in."""

    def lie(self, draft):
        return self.only(draft, sorted(range(len(draft.tokens)), key=lambda node: (self._depth(draft, node), -node)))

    def _depth(self, draft, node):
        return 0 if node < 0 else 1 + self._depth(draft, draft.parents[node])


@pytest.mark.parametrize("wrong", [WrongQ, DropsTheUnlikely])
def test_a_dishonest_drafter_is_seen(wrong):
    assert tree_step(1, "rejection", FixedLength(2), drafter_class=wrong).error > WRONG
    target, draft = pair(11, n_vocab=3)
    drafter = with_a_model(draft, "rejection", drafter_class=wrong)
    assert error_of_answers(target, drafter, lambda: FixedLength(2), PLAIN, "rejection") > WRONG


@pytest.mark.parametrize("liar", [SameQForAll, NotNormalised, DropsTheUnlikely, YoungestFirst])
def test_a_drafter_that_lies_about_siblings_is_seen(liar):
    assert tree_step(3, "rejection", Whims(4), share=0.7, drafter_class=liar).error > WRONG


@dataclass(frozen=True)
class Replaced(Categorical):
    """Says that it lacks what was drawn before, and may draw it again."""

    drawn_from: Categorical = None

    def draw(self, rng):
        return self.drawn_from.draw(rng)


def test_siblings_drawn_with_replacement_are_seen(monkeypatch):
    def with_replacement(q, token):
        left = without(q, token)
        return Replaced(left.ids, left.probs, getattr(q, "drawn_from", q))

    monkeypatch.setattr(tree, "without", with_replacement)
    assert tree_step(3, "rejection", Whims(4), share=0.7).error > WRONG


# Rules


def no_residual(draft, logits, sampler, rng):
    """Rejection sampling that draws the replacement from p itself."""
    for i, token in enumerate(draft.tokens):
        p = sampler.categorical(logits[i], draft.tokens[:i])
        if rng.random() * draft.q[i].prob(token) >= p.prob(token):
            return Verdict(tuple(range(i)), p.draw(rng), "correction")
    p = sampler.categorical(logits[len(draft.tokens)], draft.tokens)
    return Verdict(tuple(range(len(draft.tokens))), p.draw(rng), "bonus")


def bonus_of_q(draft, logits, sampler, rng):
    """Rejection sampling whose bonus token is drawn from the draft's last distribution."""
    verdict = accept.rejection(draft, logits, sampler, rng)
    return replace(verdict, token=draft.q[-1].draw(rng)) if verdict.kind == "bonus" else verdict


def careless(draft, logits, sampler, rng):
    """Rejection sampling over a tree that tries each sibling against p itself, and forgets what they took from it."""
    path, ahead, at = (), (), -1
    while True:
        p = left = sampler.categorical(logits[at + 1], ahead)
        children = draft.children(at)
        for child in children:
            token, q = draft.tokens[child], draft.q[child]
            if rng.random() * q.prob(token) < p.prob(token):
                at, path, ahead = child, (*path, child), (*ahead, token)
                break
            left = accept.residual(p, q)
        else:
            return Verdict(path, left.draw(rng), "correction" if children else "bonus" if path else "plain")


@pytest.mark.parametrize(
    ("rule", "wrong", "width"),
    [
        ("rejection", no_residual, 1),
        ("rejection", bonus_of_q, 1),
        ("rejection", credulous, 1),
        ("match", credulous, 1),
        ("rejection", careless, 3),
    ],
)
def test_a_wrong_rule_is_seen(monkeypatch, rule, wrong, width):
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert tree_step(width, rule, Whims(4 if width > 1 else 2), share=0.7).error > WRONG
    if wrong is careless:
        assert tree_step(1, rule, FixedLength(3), share=0.7).error < EXACT, "without siblings it is right"


# Over samples: the same by a statistic, once for each rule


@pytest.mark.parametrize(
    ("rule", "wrong"), [pytest.param("match", credulous, marks=pytest.mark.slow), ("rejection", no_residual)]
)
def test_samples_follow_the_distribution(monkeypatch, rule, wrong):
    assert check(rule, 2, COMBINATIONS[4], seed=11) > 1e-4
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert check(rule, 2, COMBINATIONS[4], seed=11, n=800) < 1e-6
