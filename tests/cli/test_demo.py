"""`specdec demo`: the race of the bundled pair, and what it says."""

import os
from dataclasses import replace
from time import monotonic

import pytest
from driver import TARGET, configure, succeeded

from specdec_cli.decoding.types import Done
from specdec_cli.engine.engine import one_session
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.measure import race as racing

PLAIN = next(each for each in racing.ARRANGEMENTS if not each.widened)


def test_both_write_the_same_text_in_every_round(monkeypatch):
    monkeypatch.setattr(racing, "MAX_ROUNDS", 2)
    monkeypatch.setattr(racing, "RACE_S", 300.0)
    arrangement = replace(PLAIN, drafter="ngram+model")
    with one_session(racing.settings(arrangement), Interrupt()) as session:
        race = racing.Race(session, arrangement, monotonic() + 300)
        assert list(race)
        result = race.result()
    assert len(race.alone) == len(race.drafted) == 2
    lengths = {len(metrics.tokens) for metrics in race.alone + race.drafted}
    assert len(lengths) == 1 and lengths.pop() > 200
    assert result.divergence is None or not result.divergence.bug
    assert sum(metrics.accepted for metrics in race.drafted) > 0.7 * sum(metrics.drafted for metrics in race.drafted)


def test_the_first_arrangement_that_pays_clearly_is_raced_or_else_the_best(monkeypatch):
    tried = []

    def trial(race):
        tried.append(race.arrangement)
        return gains[race.arrangement]

    monkeypatch.setattr(racing.Race, "trial", trial)
    for values, chosen, count in (((0.5, 0.9, 0.9), 0, 1), ((0.1, 0.2, 0.0), 1, 3)):
        gains = dict(zip(racing.ARRANGEMENTS, values, strict=True))
        tried.clear()
        with racing.best_race(Interrupt(), monotonic() + 600) as race:
            assert race.arrangement == racing.ARRANGEMENTS[chosen] and len(tried) == count
    with racing.best_race(Interrupt(), monotonic()) as race:  # a busy machine, whose time is over
        assert race.arrangement == racing.ARRANGEMENTS[0]
        events = list(race)
    assert events and not any(isinstance(event, Done) for _, event in events) and race.result().speedup is None


def test_wide_weights_are_made_once(monkeypatch):
    copy = racing._widened(TARGET, Interrupt())
    assert {tensor.type for tensor in read_header(copy).tensors} == {"F32"} and list(copy.parent.iterdir()) == [copy]
    monkeypatch.setattr(racing.quantize, "write", None)
    assert racing._widened(TARGET, Interrupt()) == copy


def test_without_room_for_them_the_target_races_as_it_is(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert racing._widened(TARGET, Interrupt()) is None
    monkeypatch.setattr(racing.Race, "trial", lambda _: 0.0)
    monkeypatch.setattr(racing, "_widened", lambda *_: None)
    with racing.best_race(Interrupt(), monotonic() + 600) as race:
        assert race.arrangement == PLAIN and "32 bits" not in str(race.arrangement)


def test_on_a_slow_machine_answers_are_shorter(monkeypatch):
    lengths = []
    for answer_s in (1e-6, 1e6):
        monkeypatch.setattr(racing, "_ANSWER_S", answer_s)
        with one_session(racing.settings(PLAIN), Interrupt()) as session:
            race = racing.Race(session, PLAIN, monotonic() + 300)
            race.trial()
            lengths.append({own.max_tokens for own in race._settings.values()})
    assert lengths == [{racing._MIN_TOKENS}, {racing._TOKENS}]


@pytest.mark.slow
def test_the_screen(monkeypatch):
    monkeypatch.setattr(racing, "MAX_ROUNDS", 3)
    monkeypatch.setattr(racing, "RACE_S", 300.0)
    monkeypatch.setattr("specdec_cli.cli.demo._WHOLE_S", 300.0)
    said = succeeded("demo").stdout
    whole = " ".join(said.split())
    assert "round 3, the target alone: " in whole and "same text, token for token" in whole
    assert ("  with drafts  " in said) != ("Other programs use this machine" in whole)


def test_the_users_own_settings_do_not_change_the_race():
    """Sampled, both would write other texts, and the race would call that a mistake."""
    before = [racing.settings(each) for each in racing.ARRANGEMENTS]
    configure("temp: 0.9\ndrafter: none\n")
    assert [racing.settings(each) for each in racing.ARRANGEMENTS] == before
    assert {each.temperature for each in before} == {0.0}
