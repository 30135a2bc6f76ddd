"""The settings in one line, with much known of a run or little."""

from dataclasses import fields

import pytest

from specdec_cli.display.run_report import settings_line
from specdec_cli.engine.config import Settings
from specdec_cli.evaluation.recorded_settings import RecordedSettings


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, ""),
        ({"target": "a/big.gguf"}, "big.gguf"),
        ({"target": "a/big.gguf", "drafter": "ngram+model"}, "big.gguf + ngram + model"),
        ({"target": "big.gguf", "draft": "b/small.gguf", "draft_tokens": 4}, "big.gguf + small.gguf, k=4"),
        ({"target": "big.gguf", "drafter": "none", "temp": 0.0, "accept": "match"}, "big.gguf, alone, greedy"),
        (
            {"target": "big.gguf", "draft": "q2.gguf", "drafter": "ngram+self", "tree": 1, "lookahead": "4:3:4"},
            "big.gguf + ngram + self (q2.gguf)",
        ),
        (
            {"target": "t.gguf", "draft": "d.gguf", "draft_small": "s.gguf", "drafter": "small>model", "tree": 3},
            "t.gguf + d.gguf<s.gguf, tree=3",
        ),
        (
            {
                "target": "t.gguf",
                "drafter": "lookahead",
                "draft_tokens": "auto",
                "lookahead": "7:3:7",
                "draft_min_p": 0,
            },
            "t.gguf + lookahead, k=auto, lookahead=7:3:7",
        ),
        (
            {"temp": 0.8, "accept": "match", "seed": 0, "draft": "d.gguf", "draft_min_p": 0.25},
            "draft-min-p=0.25, temp=0.8, accept=match, seed=0",
        ),
        ({"temp": 0.8, "accept": "match", "drafter": "none", "seed": None}, "alone, temp=0.8"),
    ],
)
def test_what_is_known_is_said(settings, line):
    assert settings_line(RecordedSettings.of(settings)) == line


def test_lossy_rules_are_marked_and_more_comes_last():
    assert (
        settings_line(RecordedSettings(temp=1.0, accept="typical"), ["2 threads"])
        == "temp=1.0, accept=typical (lossy), 2 threads"
    )


def test_a_name_that_is_not_text():
    assert settings_line(RecordedSettings("x/\udcff.gguf", drafter="none")) == "?.gguf, alone"


def test_a_record_has_every_setting_and_leaves_out_what_no_run_writes():
    assert [field.name for field in fields(RecordedSettings)] == [field.name for field in fields(Settings)]
    recorded = RecordedSettings.of({"temp": "hot", "seed": [1], "max_tokens": 7, "colour": "red"})
    assert recorded == RecordedSettings(max_tokens=7)
