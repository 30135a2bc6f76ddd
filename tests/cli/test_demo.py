"""`specdec demo`: the race of the bundled pair, and what it says."""

from dataclasses import replace

import pytest
from driver import call, configure, succeeded

from specdec_cli.engine import race as racing
from specdec_cli.llama.interrupt import Interrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A race of three short rounds."""
    settings = replace(racing.settings(), max_tokens=96, drafter="model", draft_tokens=6)
    with racing.engine_of(settings, Interrupt()) as engine:
        race = racing.Race(engine, racing.unfinished_file(), rounds=3)
        events = list(race)
        yield race, events, race.result()


def test_both_write_the_same_text_in_every_round(finished):
    race, _, result = finished
    assert len(race.alone) == len(race.drafted) == 3 and race.finished
    assert result.divergence is None and {len(metrics.tokens) for metrics in race.alone + race.drafted} == {96}


def test_the_pair_continues_the_file_as_it_asks_for(finished):
    """The list at its top names the fields of each class."""
    race, events, _ = finished
    text = "".join(token.text for drafts, step in events[: len(events) // 2] if not drafts for token in tokens_of(step))
    for field in ("name: str", "email: str", "city: str", "joined: date", "def to_dict(self):"):
        assert field in text
    assert sum(metrics.accepted for metrics in race.drafted) > 0.7 * sum(metrics.drafted for metrics in race.drafted)


def tokens_of(event):
    return getattr(event, "tokens", ()) if hasattr(event, "drafted") else ()


def test_who_begins_changes(finished):
    _, events, _ = finished
    first = [drafts for drafts, event in events if getattr(event, "index", None) == 0]
    assert first == [False, True, True, False, False, True]


def test_the_ratio_is_paired_and_other_machines_are_predicted(finished):
    race, _, result = finished
    pairs = zip(race.drafted, race.alone, strict=True)
    ratios = [mine.tokens_per_s / own.tokens_per_s for mine, own in pairs]
    assert min(ratios) <= result.speedup.mean <= max(ratios)
    speedups = {each.machine: each.speedup for each in result.elsewhere}
    assert speedups["h200"] > 1.5 and list(speedups.values()) == sorted(speedups.values(), reverse=True)


def test_the_screen(monkeypatch):
    monkeypatch.setattr(racing.Race.__init__, "__defaults__", (3,))
    said = succeeded("demo").stdout
    assert "same text, token for token" in said.splitlines()[0] and "with drafts" in said and "h200" in said
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("  specdec")] == [
        ["specdec", command] for command in ("pull", "run", "compare")
    ]


def test_the_users_own_settings_do_not_change_the_race():
    """Sampled, both would write other texts, and the race would call that a mistake."""
    before = racing.settings()
    configure("temp: 0.9\ndrafter: none\n")
    assert racing.settings() == before and (before.temp, before.drafter) == (0.0, "ngram+model")


def test_a_damaged_pair_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(racing, "_folder", lambda: tmp_path)
    done = call("demo")
    assert done.exit_code and "Traceback" not in done.stderr and done.stderr.count("\n") == 2
