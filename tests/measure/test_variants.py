"""What `--vs` and `--sweep` ask for, and the baselines that come of it."""

from dataclasses import replace

import pytest

from specdec_cli.decoding.errors import UsageError
from specdec_cli.measure.variants import ALONE, parse_variants
from specdec_cli.settings.settings import Settings

BASE = Settings(target="t.gguf", draft="d.gguf", drafter="model")


@pytest.mark.parametrize(
    ("changes", "versus", "sweeps", "expected"),
    [
        ({}, [], [], ["k=auto"]),
        ({}, ["k=4", "accept=match"], [], ["k=auto", "k=4", "accept=match"]),
        ({}, [], ["k=1, 2,4,auto"], ["k=1", "k=2", "k=4", "k=auto"]),
        ({"draft_tokens": 3}, [], ["draft-tokens=1,2"], ["draft-tokens=1", "draft-tokens=2", "draft-tokens=auto"]),
        ({}, [], ["-k=1"], ["-k=1", "-k=auto"]),
        ({"drafter": "ngram"}, ["k=8"], ["k=2"], ["ngram, k=8", "ngram, k=2", "ngram, k=auto"]),
        ({"draft_tokens": 3}, ["k=8"], ["draft-min-p=0,0.5"], ["k=8", "draft-min-p=0", "draft-min-p=0.5"]),
        ({}, [], ["top-k=10,20"], ["top-k=10", "top-k=20"]),  # greedy knows no cuts, so there is one baseline
        ({"drafter": "none"}, ["k=2,drafter=model"], [], ["k=2,drafter=model"]),
        ({"drafter": "ngram+self"}, ["drafter=auto"], [], ["ngram+self, k=auto", "drafter=auto"]),
    ],
)
def test_the_target_alone_then_the_settings_unless_swept_then_what_is_added(changes, versus, sweeps, expected):
    alone, *others = parse_variants(replace(BASE, **changes), versus, sweeps)
    assert (alone.name, alone.baseline, alone.settings.drafter) == (ALONE, ALONE, "none")
    assert [(variant.name, variant.baseline) for variant in others] == [(name, ALONE) for name in expected]


def test_a_variant_with_other_sampling_has_a_baseline_of_its_own():
    variants = parse_variants(BASE, ["k=8,temp=0.8"], [])
    assert [(variant.name, variant.baseline) for variant in variants] == [
        (ALONE, ALONE),
        ("alone, temp=0.8", "alone, temp=0.8"),
        ("k=auto", ALONE),
        ("k=8,temp=0.8", "alone, temp=0.8"),
    ]


@pytest.mark.parametrize(("versus", "sweeps"), [([], []), (["k=4"], []), ([], ["k=1,2"])])
def test_the_target_alone_is_not_compared_with_itself(versus, sweeps):
    with pytest.raises(UsageError, match="nothing to compare"):
        parse_variants(replace(BASE, drafter="none"), versus, sweeps)


def test_one_named_draft_serves_model_and_self_but_not_heads():
    assert parse_variants(BASE, ["drafter=self"], [], draft_named=True)
    with pytest.raises(UsageError, match="for model and mtp") as caught:
        parse_variants(BASE, ["drafter=mtp"], [], draft_named=True)
    assert "--against" not in caught.value.hint, "it refuses results of other models"


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("k", "does not parse", "key=value"),
        ("k=4,,", "does not parse", "key=value"),
        ("tmep=0.5", "cannot differ", "'temp'"),
        ("k=four", "cannot be 'four'", "whole number"),
        ("temp=-1", "temperature cannot be", "0"),
        ("drafter=self", "for model and self", "-md"),
    ],
)
def test_what_does_not_parse(text, says, hint):
    with pytest.raises(UsageError, match=says) as caught:
        parse_variants(BASE, [text], [])
    assert hint in caught.value.hint
