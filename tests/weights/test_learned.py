"""What drafting has shown about a pair, kept for the next start."""

import json
import os
from pathlib import Path

import pytest
from engines import open_session
from prompts import PROMPTS
from timed import FLAT, scaled

from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.loss_budget import START
from specdec_cli.weights.learned import Learned


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
    monkeypatch.setattr(Learned, "begin", lambda self, begin=Learned.begin: seen.append(self) or begin(self))
    answered(monkeypatch)
    assert len(kept()) == 1 and not seen
    answered(monkeypatch)
    assert len(kept()) == 1 and len(seen) == 1 and seen[0].calibration.looks > 0
    answered(monkeypatch, drafter="ngram")
    answered(monkeypatch, temperature=0.8, accept="rejection")
    assert len(seen) == 1, "n-grams keep nothing, and another kind of sampling has its own"
    assert len(json.loads(kept()[0].read_text())["drafters"]) == 2


def test_where_drafting_lost_less_is_tried_the_next_time():
    lost = Learned(Calibration.prior(greedy=True), left=-0.5)
    gained = Learned(Calibration.prior(greedy=True), left=20.0)
    assert lost.begin()[1].left == START / 2 and gained.begin()[1].left == START
    calibration = Calibration.prior(greedy=True)
    for _ in range(50):
        calibration.observe_confidence(3)
        calibration.learn(3, 0.0)
    aged = calibration.aged()
    for _ in range(25):
        aged.learn(3, 1.0)
        calibration.learn(3, 1.0)
    assert aged.rate(3) > calibration.rate(3), "it can be overturned sooner"


@pytest.mark.parametrize(("changed", "noted"), [({"machine": "a toaster"}, False), ({"drafters": 3}, True)])
def test_what_another_machine_learned_or_damage_is_not_used(monkeypatch, changed, noted):
    answered(monkeypatch)
    kept()[0].write_text(json.dumps(json.loads(kept()[0].read_text()) | changed))
    monkeypatch.setattr(Learned, "begin", None)
    notes = answered(monkeypatch)
    assert [note for note in notes if "learned" in note] if noted else not notes
    assert "greedy" in kept()[0].read_text(), "and kept again"
