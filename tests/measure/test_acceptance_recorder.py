"""What a recording says is what speculative runs of the bundled pair then do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from driver import DRAFT, TARGET
from fakes import FakeDraftModel, Table, tokens_of
from prompts import PROMPTS
from scipy.special import chdtrc

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.engine.engine import one_session
from specdec_cli.measure import acceptance_traces as recorder
from specdec_cli.measure.acceptance_traces import before_a_loop, record
from specdec_cli.measure.simulate import AHEAD, replay
from specdec_cli.settings.config import Settings

ANY = Costs(Curve({1: 0.0}), Curve({1: 0.0}))


@pytest.fixture(scope="module")
def session():
    with one_session(
        Settings(target=str(TARGET), draft=str(DRAFT), drafter="model", max_tokens=64, threads=1)
    ) as session:
        session.open(64)
        yield session


def steps_of(events):
    return [(len(event.drafted), event.accepted) for event in events if isinstance(event, Step)][1:]


def test_greedy_drafts_are_foretold_step_by_step(session):
    places = cut = 0
    for prompt in PROMPTS[8:13]:
        tokens = session.tokenize(prompt, raw=True)
        answer, own = record(session, tokens, session.settings, 0, "code")
        length = len(answer.stands)
        places, cut = places + length, cut + (length < len(own))
        assert (answer.category, answer.prompt_tokens) == ("code", len(tokens))
        for stood, ahead in zip(answer.stands, answer.astray, strict=True):
            assert len(ahead) == (0 if stood else AHEAD - 1) and all(0 < sure <= 1 for sure in ahead)
        for k, min_p in ((3, 0.0), (3, 0.5), (16, 0.6)):
            run = replace(session.settings, draft_tokens=k, draft_min_p=min_p, max_tokens=length + 1)
            events = list(session.events(tokens, 0, settings=run))
            foretold = []
            tally = replay(FixedLength(k, min_p), [answer], ANY, foretold.append)
            shared = min(length + 1, len(own))
            assert tokens_of(events)[:shared] == own[:shared]
            assert steps_of(events) == [(len(step.drafted), step.accepted) for step in foretold]
            report = Metrics.of(events)
            tallied = tally.verified.total(), tally.drafted, tally.accepted
            assert (report.steps, report.drafted, report.accepted) == tallied
    assert places > 100 and 2 <= cut < 5  # some answers went into a loop, some on to their last token


LAST = 'if __name__ == "__main__":\n    unittest'
"""After which a file ends."""


def test_an_answer_is_recorded_up_to_its_end(session):
    lengths = set()
    for prompt in (f"{LAST}.main()\n", LAST):
        tokens = session.tokenize(prompt, raw=True)
        answer, own = record(session, tokens, session.settings, 0, "code")
        events = list(session.events(tokens, 0, settings=session.settings.alone()))
        assert events[-1].reason == "stop"
        # The end token is the last place; the first token of an answer, which no draft precedes, is none.
        assert len(answer.stands) == len(own) == len(tokens_of(events)) - 1
        lengths.add(len(own))
    assert lengths == {0, 4}


def test_each_rule_draws_in_its_own_way(session):
    prompt = session.tokenize(PROMPTS[0], raw=True)

    def recorded(rule, seed):
        return record(session, prompt, replace(session.settings, temperature=0.8, accept=rule), seed, "code")

    coupled, tokens = recorded("coupled", 3)
    assert recorded("coupled", 3) == (coupled, tokens) != recorded("coupled", 4)
    rejection, _ = recorded("rejection", 3)
    assert rejection.stands != coupled.stands and len(rejection.stands) > 0


class Unchanging(Table):
    """Whatever the text, the same logits."""

    def row(self, context):
        return super().row((0,))


class Proposals(FakeDraftModel):
    """A draft model that notes with which wrong tokens it is led astray."""

    def __init__(self, table):
        super().__init__(table)
        self.wrong, self.asked = [], False

    def begin_draft(self):
        self.asked = True

    def decode(self, tokens, all_rows=False):
        if self.asked:
            self.wrong.append(tokens[0])
        self.asked = False
        return super().decode(tokens, all_rows)


@pytest.mark.parametrize("rule", ["rejection", "match"])
def test_each_place_is_a_draw_from_the_draft_that_stands_as_often_as_the_rule_accepts(monkeypatch, rule):
    """On a target and a draft whose distributions never change: with rejection x has distribution q, and stands as
    often as sum(min(p, q)); with match it is the likeliest of q, and stands with its p. The target's tokens follow p.
    """
    monkeypatch.setattr(recorder, "AHEAD", 2)
    n, n_vocab = 3000, 6
    tables = Unchanging(n_vocab, 1), Unchanging(n_vocab, 3)
    target, draft = FakeDraftModel(tables[0]), Proposals(tables[1])
    settings = Settings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=n, accept=rule)
    opened = SimpleNamespace(model=SimpleNamespace(is_end=lambda token: False), opened=target)
    models = SimpleNamespace(target=opened, draft=SimpleNamespace(drafting=draft))
    pair = SimpleNamespace(models=models, pair=SimpleNamespace(n_shared=n_vocab))
    monkeypatch.setattr(recorder, "before_a_loop", len)
    answer, own = record(pair, [0], settings, 1, "fake")
    p, q = (StandardSampler(SamplingOptions(1.0, 0, 1.0, 0.0)).categorical(table.row(())).probs for table in tables)
    share = np.minimum(p, q).sum() if rule == "rejection" else p[q.argmax()]
    assert 0.2 < share < 0.8
    assert abs(np.mean(answer.stands) - share) < 4 * (share * (1 - share) / n) ** 0.5
    assert answer.confidence == pytest.approx([q.max()] * len(answer.stands))
    following = np.array([*own[1:]])
    stood = [token for token, stands in zip(following, answer.stands, strict=False) if stands]
    proposed = np.bincount([*draft.wrong, *stood], minlength=n_vocab)
    if rule == "match":
        assert proposed.argmax() == q.argmax() and proposed.max() == proposed.sum()
        return
    for counts, expected in ((proposed, q), (np.bincount(following, minlength=n_vocab), p)):
        total = counts.sum()
        assert total > n - 3
        assert chdtrc(n_vocab - 1, ((counts - total * expected) ** 2 / (total * expected)).sum()) > 1e-4


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0),
        ([7] * 11, 11),  # not often enough
        ([1, 2, 3, *[7] * 40], 4),
        ([1, 2] * 6, 2),
        ([1, 2, 3, 4] * 2 + [1, 2, 3], 11),  # twice and a half
        ([*range(100, 105), *[*range(20)] * 3, 99], 25),
        ([*range(10), *[1, 2, 3, 4, 5] * 2, *[6, 7, 8, 9] * 3], 24),
        ([token for i in range(20) for token in (1, 2, 3, 100 + i)], 80),  # a word with a number that counts
    ],
)
def test_before_a_loop(tokens, expected):
    assert before_a_loop(tokens) == expected
