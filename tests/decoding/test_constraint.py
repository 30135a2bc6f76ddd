"""Answers bound by a constraint have the target's own distribution under it, to 1e-12; mistakes with masks are seen."""

import numpy as np
import pytest
from exactness import EXACT, PLAIN, WRONG, V, Whims, error_of_answers, pair, with_a_model
from fakes import GREEDY, FakeTarget, ScriptedDrafter, Table, origins_of, run, steps_of, tokens_of

from specdec_cli.decoding.logprobs import with_logprobs
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import RULES, sampler_of

pytestmark = pytest.mark.usefixtures("unguarded")
CUTS = SamplingOptions(temperature=1.2, top_k=3, top_p=0.9, min_p=0.05)


class Rules:
    """A `Constraint` by a function from what was written to what may follow: a set of tokens, or None for all."""

    def __init__(self, allowed, n_vocab=V):
        self._allowed, self._n_vocab = allowed, n_vocab

    def begin(self, context, prompt_tokens):
        self._context, self._first = context, prompt_tokens

    def mask(self, ahead=()):
        allowed = self._allowed((*self._context[self._first :], *ahead))
        return None if allowed is None else np.isin(np.arange(self._n_vocab), [*allowed])

    def forced(self, ahead=()):
        allowed = self._allowed((*self._context[self._first :], *ahead))
        return next(iter(allowed)) if allowed is not None and len(allowed) == 1 else None

    def expected(self, most):
        return []

    def allowed(self, tokens):
        for place, token in enumerate(tokens):
            mask = self.mask(tokens[:place])
            if mask is not None and not mask[token]:
                return place
        return len(tokens)


def no_repeats(written):
    """A token may not follow itself, and 2 leaves no choice but 0."""
    if not written:
        return {0, 2, 3}
    return {0} if written[-1] == 2 else {*range(V)} - {written[-1]}


class Late(Rules):
    """A mask one token late: that of the place before."""

    def mask(self, ahead=()):
        return super().mask(ahead[:-1])


class NeverBack(Rules):
    """A state that goes forward with a draft, and not back to where its tokens are judged."""

    _at, _deepest = -1, ()

    def mask(self, ahead=()):
        if self._at != len(self._context):
            self._at, self._deepest = len(self._context), ()
        self._deepest = max(self._deepest, tuple(ahead), key=len)
        return super().mask(self._deepest)


def error(rule, width, sampling, made=Rules, forced=True):
    target, draft = pair(11, n_vocab=4)

    class Made(made):
        def forced(self, ahead=()):
            return super().forced(ahead) if forced else None

    return error_of_answers(
        target, with_a_model(draft, rule, width), lambda: Whims(2), sampling, rule,
        constraints=(lambda: Rules(no_repeats, 4), lambda: Made(no_repeats, 4)),
    )  # fmt: skip


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize(("width", "sampling"), [(1, PLAIN), (2, CUTS)])
def test_whole_answers_keep_the_distribution(rule, width, sampling):
    assert error(rule, width, sampling) < EXACT


def test_tokens_that_are_forced_change_nothing():
    assert error("rejection", 1, PLAIN, forced=False) < EXACT


@pytest.mark.parametrize(("rule", "made"), [("match", Late), ("rejection", Late), ("rejection", NeverBack)])
def test_a_mask_that_is_late_or_does_not_go_back_is_seen(rule, made):
    """Of the target alone it would be right: what was drafted makes the difference."""
    assert error(rule, 1, PLAIN, made, forced=False) > WRONG


@pytest.mark.parametrize(
    ("rule", "temperature"), [("match", 0.0), ("match", 1.0), ("coupled", 1.0), ("rejection", 0.0)]
)
def test_the_text_is_that_of_the_target_alone(rule, temperature):
    """Of the rules that promise it, and greedily of all; forced tokens use up the numbers that draws would."""
    settings = SamplingOptions(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    for seed in range(40):
        target = Table(V, seed)
        texts = []
        for drafts in (False, True):
            sampler = sampler_of(rule, settings, seed, Rules(no_repeats))
            draft = target.mixed(Table(V, seed + 1), 0.5)
            drawn = "match" if rule == "match" else "rejection"
            drafter = with_a_model(draft, drawn)(sampler, np.random.default_rng(1)) if drafts else None
            events = run(FakeTarget(target), (1,), drafter, 3, 12, settings, rule, seed, sampler=sampler)
            texts.append(tokens_of(events))
        assert texts[0] == texts[1]
        assert all(later == 0 for earlier, later in zip(texts[0], texts[0][1:], strict=False) if earlier == 2)


def test_forced_tokens_take_no_pass_and_are_read_with_the_next():
    """3, 4, 1 and 0 follow each other without a choice after the first token."""
    path = {0: {3}, 1: {4}, 2: {1}, 3: {0}}
    sampler = sampler_of("match", SamplingOptions(temperature=0.0), 0, Rules(lambda text: path.get(len(text) - 1)))
    target = FakeTarget(Table(V, 5))
    events = run(target, (1,), ScriptedDrafter([]), 1, 7, sampler=sampler)
    first, second, third = steps_of(events)
    assert [token.id for token in first.tokens[1:]] == [3, 4, 1, 0]
    assert origins_of(events) == ["plain", *["forced"] * 4, "plain", "plain"]
    assert (first.unread, second.unread, third.unread) == (0, 4, 0) and first.forced == 4
    assert target.passes == [1, 1], "of forced tokens no row is asked for"
    assert target.length == len(tokens_of(events)), "the prompt's token, and all but the last of the answer"


def test_inside_a_draft_they_are_as_free_and_as_certain(monkeypatch):
    """Two of them follow each choice. The first token of the answer comes with the prompt."""
    monkeypatch.setitem(RULES, "logged", with_logprobs(RULES["match"], 2))
    answers, text = [], ()
    for drafts in ((), (3, 9)):
        sampler = sampler_of("match", GREEDY, 0, Rules(lambda text: {len(text) % V} if len(text) % 3 else None))
        drafter = ScriptedDrafter([text[at : at + 3] for at in drafts])
        events = run(FakeTarget(Table(V, 5)), (1,), drafter, 3, 12, rule="logged", sampler=sampler)
        answers.append([(token.id, token.logprobs) for step in steps_of(events) for token in step.tokens])
        text = tokens_of(events)
        assert Metrics.of(events).free == 8
    assert answers[0] == answers[1]
    assert [(step.accepted, step.forced, step.free) for step in steps_of(events)] == [(0, 2, 0), (3, 2, 2), (2, 0, 2)]


def test_what_is_forbidden_costs_no_row():
    sampler = sampler_of("match", SamplingOptions(temperature=0.0), 0, Rules(lambda _: {0, 1}))
    target = FakeTarget(Table(V, 5))
    events = run(target, (1,), ScriptedDrafter([(0, 1, 4, 0), (4, 0)]), 4, 6, sampler=sampler)
    assert [len(step.drafted) for step in steps_of(events)][1:3] == [2, 0]
