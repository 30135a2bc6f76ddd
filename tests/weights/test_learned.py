"""What drafting has shown about a pair, kept for the next start."""

import json
import os
from dataclasses import replace
from operator import sub
from pathlib import Path

from engines import open_session
from prompts import PROMPTS
from timed import FLAT, scaled

from specdec_cli.draft_length.calibration import BINS, Calibration
from specdec_cli.draft_length.loss_budget import START, LossBudget
from specdec_cli.llama import library
from specdec_cli.weights.learned import Learned, Learning


def kept():
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "specdec" / "learned"
    return sorted(folder.glob("*.json"))


def answered(monkeypatch, **settings):
    """The notes of a session with an answer, as in a process of its own, where drafting pays."""
    with open_session(draft_tokens="auto", **settings) as session:
        monkeypatch.setattr(session.costs, "of_pair", lambda text: scaled(FLAT, 0.0003))
        list(session.events(session.tokenize(PROMPTS[0], raw=True), 0))
        return list(session.notes)


def test_a_second_start_begins_where_the_first_ended(monkeypatch):
    seen = []
    monkeypatch.setattr(
        Learned, "begin", lambda self, *first, begin=Learned.begin: seen.append(self) or begin(self, *first)
    )
    answered(monkeypatch)
    assert len(kept()) == 1 and not seen
    answered(monkeypatch)
    assert len(kept()) == 1 and len(seen) == 1 and seen[0].calibration.looks > 0
    answered(monkeypatch, drafter="ngram")
    answered(monkeypatch, temperature=0.8, accept="rejection")
    assert len(seen) == 1, "n-grams keep nothing, and another kind of sampling has its own"
    assert len(json.loads(kept()[0].read_text())["drafters"]) == 2


def after(outcome, tokens=200):
    """What was learned of drafts that all had the same outcome."""
    calibration = Calibration.prior(greedy=True)
    for _ in range(tokens):
        calibration.observe_confidence(3)
        calibration.learn(3, outcome)
    return calibration


def test_where_drafting_lost_less_is_tried_the_next_time():
    prior = Calibration.prior(greedy=True)
    lost, gained = Learned(after(0.0), left=-0.5), Learned(after(1.0), left=20.0)
    (aged, little), (_, much) = (each.begin(prior, LossBudget()) for each in (lost, gained))
    assert little.left == START / 2 and much.left == START
    learned = lost.calibration
    for _ in range(25):
        aged.learn(3, 1.0)
        learned.learn(3, 1.0)
    assert aged.rate(3) > learned.rate(3), "it can be overturned sooner"


def test_starts_without_a_draft_forget_that_drafts_were_bad_and_not_that_they_were_good():
    """Where nothing is drafted, nothing is learned, so what was learned must not last."""
    prior = Calibration.prior(greedy=True)
    bad, good = after(0.0), after(1.0)
    for _ in range(10):
        bad, good = (Learned(each, left).begin(prior, LossBudget())[0] for each, left in ((bad, 0.0), (good, 4.0)))
    assert not bad.looks, "it is then no longer kept"
    assert max(map(abs, map(sub, bad.seen, prior.seen))) < 0.02
    for at in range(3, BINS - 1):
        assert abs(bad.rate(at) - prior.rate(at)) < 0.02 < good.rate(at) - prior.rate(at)


def test_other_settings_of_a_session_begin_with_what_it_has_learned(monkeypatch):
    started = []
    begin = Learning.begin
    monkeypatch.setattr(Learning, "begin", lambda *args: started.append(begin(*args)) or started[-1])
    with open_session(draft_tokens="auto", temperature=0.7, accept="rejection") as session:
        monkeypatch.setattr(session.costs, "of_pair", lambda text: scaled(FLAT, 0.0003))
        prompt = session.tokenize(PROMPTS[0], raw=True)
        list(session.events(prompt, 0))
        list(session.events(prompt, 0, replace(session.settings, temperature=0.8)))
    (first, _), (second, _) = started
    assert second is not first and second.looks > 0 and second.offset != Calibration.prior(greedy=False).offset


def test_what_another_machine_learned_is_not_used_but_kept(monkeypatch):
    answered(monkeypatch)
    here = kept()
    with monkeypatch.context() as patch:
        patch.setattr(library, "machine", lambda: "a toaster")
        patch.setattr(Learned, "begin", None)
        assert not answered(monkeypatch)
    assert len(kept()) == 2 and {*here} < {*kept()}


def test_what_is_damaged_is_learned_again(monkeypatch):
    answered(monkeypatch)
    kept()[0].write_text(json.dumps(json.loads(kept()[0].read_text()) | {"drafters": 3}))
    monkeypatch.setattr(Learned, "begin", None)
    assert [note for note in answered(monkeypatch) if "learned" in note]
    assert "greedy" in kept()[0].read_text(), "and kept again"
