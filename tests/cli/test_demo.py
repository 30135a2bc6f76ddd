"""`specdec demo`: the race of the bundled pair, and what it says."""

from dataclasses import replace
from time import monotonic

import pytest
from driver import call, configure, succeeded

from specdec_cli.decoding.types import Done, Step
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.measure import race as racing

EDIT = racing.Arrangement("ngram", widened=True, edits=True)
DRAFTED = racing.Arrangement("ngram+model", widened=False, edits=False)


@pytest.fixture(scope="module", params=[EDIT, DRAFTED], ids=["edit", "continue"])
def finished(request):
    """A race of three rounds."""
    arrangement = request.param
    with racing.engine_of(arrangement, Interrupt()) as engine, pytest.MonkeyPatch.context() as changed:
        changed.setattr(racing, "MOST_ROUNDS", 3)
        changed.setattr(racing, "RACE_S", 300.0)
        # Whatever that costs here.
        drafter = "model" if arrangement is DRAFTED else "ngram"
        engine.settings = replace(engine.settings, drafter=drafter, draft_tokens=6, max_tokens=240)
        race = racing.Race(engine, arrangement, monotonic() + 300)
        yield race, list(race), race.result()


def test_both_write_the_same_text_in_every_round(finished):
    race, _, result = finished
    assert len(race.alone) == len(race.drafted) == 3 and not race.interrupted
    lengths = {len(metrics.tokens) for metrics in race.alone + race.drafted}
    assert len(lengths) == 1 and lengths.pop() > 200
    assert result.divergence is None or not result.divergence.bug


def test_the_pair_writes_what_the_text_asks_for(finished):
    """The list at its top names the fields of each class; in the edit the first class is there already."""
    race, events, _ = finished
    steps = [event for drafts, event in events[: len(events) // 2] if not drafts and isinstance(event, Step)]
    text = "".join(token.text for step in steps for token in step.tokens)
    fields = ("title: str", "isbn: str") if race.arrangement.edits else ("email: str", "joined: date")
    for field in (*fields, "def to_dict(self):"):
        assert field in text
    assert sum(metrics.accepted for metrics in race.drafted) > 0.7 * sum(metrics.drafted for metrics in race.drafted)


def test_who_begins_changes(finished):
    _, events, _ = finished
    first = [drafts for drafts, event in events if getattr(event, "index", None) == 0]
    assert first == [False, True, True, False, False, True]


def test_the_ratio_is_paired_round_by_round(finished):
    race, _, result = finished
    ratios = [mine.tokens_per_s / own.tokens_per_s for mine, own in zip(race.drafted, race.alone, strict=True)]
    assert min(ratios) <= result.speedup.mean <= max(ratios) and result.tokens_per_pass > 1.5


def test_the_first_arrangement_that_pays_clearly_is_raced_or_else_the_best(monkeypatch):
    tried = []

    def trial(race):
        tried.append(race.arrangement)
        return gains[race.arrangement]

    monkeypatch.setattr(racing.Race, "trial", trial)
    for values, chosen, count in (((0.5, 0.9, 0.9), 0, 1), ((0.1, 0.2, 0.0), 1, 3), ((-0.3, -0.2, -0.1), 2, 3)):
        gains = dict(zip(racing.ARRANGEMENTS, values, strict=True))
        tried.clear()
        with racing.best_race(Interrupt(), monotonic() + 600) as race:
            assert race.arrangement == racing.ARRANGEMENTS[chosen] and len(tried) == count
    with racing.best_race(Interrupt(), monotonic()) as race:  # a busy machine, whose time is over
        assert race.arrangement == racing.ARRANGEMENTS[0]
        events = list(race)
    assert events and not any(isinstance(event, Done) for _, event in events) and race.result().speedup is None


def test_the_screen(monkeypatch):
    monkeypatch.setattr(racing, "MOST_ROUNDS", 3)
    monkeypatch.setattr(racing, "RACE_S", 300.0)
    monkeypatch.setattr("specdec_cli.cli.demo._WHOLE_S", 300.0)
    said = succeeded("demo").stdout
    assert said.startswith("A model of 9 M weights ") and "round 3, the target alone: " in " ".join(said.split())
    assert "same text, token for token" in " ".join(said.split()) and "  with drafts  " in said
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("  specdec")] == [
        ["specdec", command] for command in ("pull", "run", "compare", "tune")
    ]


def test_the_users_own_settings_do_not_change_the_race():
    """Sampled, both would write other texts, and the race would call that a mistake."""
    before = [racing.settings(each) for each in racing.ARRANGEMENTS]
    configure("temp: 0.9\ndrafter: none\n")
    assert [racing.settings(each) for each in racing.ARRANGEMENTS] == before
    assert {each.temp for each in before} == {0.0}


def test_a_damaged_pair_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(racing, "_folder", lambda: tmp_path)
    done = call("demo")
    assert done.exit_code and "Traceback" not in done.stderr and done.stderr.count("\n") == 2
