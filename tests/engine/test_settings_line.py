"""The settings in one line, with much known of a run or little."""

import pytest

from specdec_cli.display.settings_line import settings_line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, ""),
        ({"target": "a/big.gguf"}, "big.gguf"),
        ({"target": "a/big.gguf", "drafter": "ngram+model"}, "big.gguf + ngram + model"),
        ({"target": "big.gguf", "draft": "b/small.gguf", "draft_tokens": 4}, "big.gguf + small.gguf, k=4"),
        ({"target": "big.gguf", "drafter": "none", "temp": 0.0, "accept": "match"}, "big.gguf, alone, greedy"),
        (
            {"target": "t", "draft": "q", "drafter": "ngram+self", "tree": 1, "lookahead": "4:3:4"},
            "t + ngram + self (q)",
        ),
        ({"target": "t", "draft": "d", "draft_small": "s", "drafter": "small>model", "tree": 3}, "t + d<s, tree=3"),
        (
            {"target": "t", "drafter": "lookahead", "lookahead": "7:3:7", "draft_tokens": 4},
            "t + lookahead, k=4, lookahead=7:3:7",
        ),
        (
            {"temp": 0.8, "accept": "match", "seed": 0, "draft": "d.gguf", "draft_min_p": 0.25},
            "draft-min-p=0.25, temp=0.8, accept=match, seed=0",
        ),
        ({"temp": 0.8, "accept": "match", "drafter": "none", "seed": None, "draft_min_p": 0}, "alone, temp=0.8"),
        ({"target": "x/\udcff.gguf", "drafter": "none"}, "?.gguf, alone"),  # a name that is not text
    ],
)
def test_what_is_known_is_said(settings, line):
    assert settings_line(settings) == line


def test_lossy_rules_are_marked_and_more_comes_last():
    line = settings_line({"temp": 1.0, "accept": "typical"}, ["2 threads"])
    assert line == "temp=1.0, accept=typical (lossy), 2 threads"
