"""A divergence is proved: kernels that round differently are told from mistakes, however small or large the margin."""

import numpy as np
import pytest
from exactness import spoilt
from fakes import GREEDY, FakeTarget, Table, drafter_of, run

from specdec_cli.decoding import rules
from specdec_cli.decoding.divergence import Choice, Transcript, explain, first_difference, recomputed
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.types import NO_DRAFT

V, PROMPT, SEED = 30, (1, 2, 3), 5
SAMPLED = SamplingOptions(temperature=0.9, top_k=8)


class Rounding(FakeTarget):
    """A target whose wider passes compute other logits, by far more than any fixed margin."""

    def verify(self, pending, draft):
        rows = super().verify(pending, draft)
        if len(rows) < 2:
            return rows
        noise = np.random.default_rng([len(self._cache), len(rows)])
        return rows + noise.uniform(-1.5, 1.5, rows.shape).astype(np.float32)


class Faulty(FakeTarget):
    """A target whose cache keeps the first rejected token of a draft somewhere."""

    pending, _draft = (), NO_DRAFT

    def verify(self, pending, draft):
        return super().verify(*self.pending or (pending,), draft)

    def commit(self, verdict, unread=()):
        super().commit(verdict, unread)
        rejected = [token for i, token in enumerate(self._draft.tokens) if i not in verdict.path]
        self.keep(rejected[:1], bool(verdict.path))


class KeepsARejectedToken(Faulty):
    """In the place of the one that the target chose."""

    def keep(self, rejected, accepted):
        self.pending = rejected


class KeepsATokenTooMany(Faulty):
    """Beside the one that the target chose."""

    def keep(self, rejected, accepted):
        self._cache += rejected


class KeepsAnother(Faulty):
    """In the place of the last accepted one."""

    def keep(self, rejected, accepted):
        if accepted and rejected:
            self._cache[-1:] = rejected


def answers(target_class, settings, rule, width=1):
    """The target's own answer, and one with drafts, as transcripts."""
    table, sampler = Table(V, 1), rules.sampler_of(rule, settings, SEED)
    drafter = drafter_of("model", table.mixed(Table(V, 2), 0.3), sampler, rule == "coupled", width=width)
    alone = run(target_class(table), PROMPT, None, 1, 60, settings, rule, SEED)
    answer = run(target_class(table), PROMPT, drafter, 4, 60, settings, rule, SEED, sampler=sampler)
    return Transcript.of(alone), Transcript.of(answer)


def choice(settings, rule, tokens=()):
    """How a token is chosen after some of the answer."""
    sampler = rules.sampler_of(rule, settings, SEED)
    context = [*PROMPT, *tokens]
    sampler.follow(context)
    return Choice(sampler, len(tokens), len(context), SEED)


def explained(alone, answer, settings, rule, target_class=Rounding, **options):
    position = first_difference(answer.tokens, alone.tokens)
    assert position is not None, "nothing to explain"
    how = choice(settings, rule, alone.tokens[:position])
    return explain(PROMPT, alone, answer, position, how, lambda _: target_class(Table(V, 1)), **options)


WAYS = [
    (GREEDY, "rejection"),
    (SamplingOptions(repeat_penalty=1.3), "match"),
    (SAMPLED, "match"),
    (SAMPLED, "coupled"),
    (SamplingOptions(temperature=1.0, top_k=0, top_p=1, min_p=0), "coupled"),
]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("settings", "rule"), WAYS)
def test_rounding_is_proved_whatever_the_margin(settings, rule, width):
    alone, answer = answers(Rounding, settings, rule, width)
    found = explained(alone, answer, settings, rule)
    assert found.kind == "rounding" and not found.bug
    assert found.width > 1 and all(margin is None or margin > 0 for margin in (found.own_margin, found.margin))
    assert "proved to be rounding" in str(found)
    for position in range(0, len(answer.tokens), 3):
        row = recomputed(Rounding(Table(V, 1)), PROMPT, answer, position)
        decided = choice(settings, rule, answer.tokens[:position]).token(row)
        assert decided == answer.tokens[position], "the row computed again is the row that decided"


@pytest.mark.parametrize(
    ("faulty", "again", "bug"),
    [
        (KeepsARejectedToken, FakeTarget, "computed again, the target with"),
        (KeepsATokenTooMany, KeepsATokenTooMany, "the cache holds"),
        (KeepsAnother, KeepsAnother, "the row of logits that chose the token depends on rejected tokens"),
    ],
)
@pytest.mark.parametrize(("settings", "rule"), WAYS)
def test_a_cache_that_kept_a_rejected_token_is_a_bug(settings, rule, faulty, again, bug):
    """Also where computing again repeats the mistake: to the bit, in a cache as long as it should be."""
    alone, answer = answers(faulty, settings, rule, 3 if faulty is KeepsAnother else 1)
    difference = explained(alone, answer, settings, rule, target_class=again)
    assert bug in difference.bug and difference.kind == "wrong"


def test_experts_may_round_by_the_company_they_keep():
    """In a mixture of experts other rejected tokens may change bits, but not the preferred token."""

    class Routed(Rounding):
        def verify(self, pending, draft):
            return super().verify(pending, draft) + np.float32(1e-6 * sum(draft.tokens))

    alone, answer = answers(Routed, GREEDY, "match")
    assert explained(alone, answer, GREEDY, "match", Routed, experts=False).kind == "wrong"
    assert explained(alone, answer, GREEDY, "match", Routed, experts=True).kind == "rounding"


@pytest.mark.parametrize(("settings", "rule"), WAYS)
def test_a_wrong_acceptance_rule_is_a_bug(settings, rule, monkeypatch):
    monkeypatch.setitem(rules.RULES, rule, spoilt(rule))
    alone, answer = answers(FakeTarget, settings, rule)
    assert "computed again" in explained(alone, answer, settings, rule, target_class=FakeTarget).bug


def test_an_answer_that_ends_where_the_other_goes_on_is_a_bug():
    alone = Transcript.of(run(FakeTarget(Table(V, 1)), PROMPT, None, 1, 20))
    short = Transcript(alone.passes[:10])
    assert "the answer ended" in explained(alone, short, GREEDY, "match").bug
    assert "the target's own answer ended" in explained(short, alone, GREEDY, "match").bug


def test_margins_are_between_the_two_tokens():
    row = np.array([1.0, 3.0, 2.99, 0.0], np.float32)
    greedy = choice(GREEDY, "match")
    assert greedy.token(row) == 1 and greedy.unit == "logits"
    assert greedy.margin(row, 2) == pytest.approx(0.01, abs=1e-6)
    assert greedy.margin(row, 0) == pytest.approx(2.0)
    matched = choice(SamplingOptions(temperature=1, top_k=2), "match")
    assert matched.unit == "probability" and matched.margin(row, 0) is None, "the other token has been cut"
    coupled = choice(SamplingOptions(temperature=1, top_k=0, top_p=1, min_p=0), "coupled")
    best = coupled.token(row)
    margins = [coupled.margin(row, token) for token in range(4)]
    assert margins[best] == 0 and min(margins) == 0


@pytest.mark.parametrize(("token", "margin"), [(3, 0.01), (9, 0.49), (5, 0), (4, None)])
def test_a_draw_misses_by_the_distance_to_the_other_tokens_share(token, margin):
    matched = choice(SamplingOptions(temperature=1, top_k=3, top_p=1, min_p=0), "match")
    matched._uniform = 0.21
    row = np.full(10, -9, np.float32)
    row[[3, 5, 9]] = np.log([0.2, 0.5, 0.3])
    assert matched.margin(row, token) == (None if margin is None else pytest.approx(margin))
