"""The speed with drafts against the target alone: both write parts of an answer, in turn."""

from types import SimpleNamespace

import pytest

from specdec_cli.engine.baseline import paired_speeds
from specdec_cli.settings.config import Settings

DRAFTED, ALONE = "ngram", "none"


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [(72, [(0, 12), (12, 12), (24, 12), (36, 12), (48, 12), (60, 12)]), (10, [(0, 10)] * 5)],
)
def test_both_write_each_part_and_who_begins_changes(tokens, parts):
    """A short answer is written several times."""
    calls = []

    def write(start, settings):
        calls.append((settings.drafter, (start, settings.max_tokens)))
        return SimpleNamespace(reason="length", tokens_per_s=30.0 if settings.drafter == DRAFTED else 20.0)

    assert paired_speeds(write, [1] * tokens, Settings(drafter=DRAFTED)) == [(30.0, 20.0)] * len(parts)
    order = [DRAFTED, ALONE, ALONE, DRAFTED] * 3
    assert calls == list(zip(order, [part for part in parts for _ in range(2)], strict=False))


def test_an_interrupted_comparison_says_nothing():
    ended = SimpleNamespace(reason="interrupted", tokens_per_s=20.0)
    assert paired_speeds(lambda *_: ended, [1] * 72, Settings(drafter=DRAFTED)) == []
