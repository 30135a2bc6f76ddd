"""Which drafts are proposed for a target: by its tokenizer's family, and by profiles for it."""

import functools

import numpy as np
import pytest
import yaml
from hub_pairs import own_profile

from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.pairs import profiles, references
from specdec_cli.pairs.draft_proposals import candidates

FAMILIES = yaml.safe_load((profiles.bundled_dir() / "families" / "drafts.yaml").read_text("utf-8"))

READ = functools.cache(profiles.load)


def header(architecture="qwen3", pre="qwen2") -> Header:
    metadata = {"general.architecture": architecture, "tokenizer.ggml.pre": pre}
    return Header("t.gguf", 3, {key: value for key, value in metadata.items() if value is not None}, (), 0)


@pytest.fixture
def quick(monkeypatch):
    """Every profile is read once."""
    monkeypatch.setattr(profiles, "load", READ)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["family"])
def test_a_family_names_drafts_that_can_be_named_and_are_proposed_in_their_order(family, quick):
    assert set(family) == {"family", "architectures", "pre", "drafts"}
    assert family["drafts"] and len(set(family["drafts"])) == len(family["drafts"])
    for draft in family["drafts"]:
        reference = references.parse(draft)
        assert reference and str(reference) == draft
        assert reference.quant or references.quant_of(reference.file), f"{draft} says no quantisation"
    for architecture in family["architectures"]:
        found = candidates(header(architecture, family["pre"]), "org/t:Q8_0")
        assert [draft for draft in found if draft in family["drafts"]] == family["drafts"]
        assert candidates(header(architecture, "other"), "org/t:Q8_0") == []
        assert candidates(header("other", family["pre"]), "org/t:Q8_0") == []


def test_the_users_profiles_for_this_very_target_come_first():
    own_profile("a", "target: org/t:Q8_0\ndraft: org/own:Q8_0\n")
    own_profile("b", "target: org/t:Q8_0\n")
    own_profile("c", "target: org/t:Q8_0\ndraft: small.gguf\n")
    own_profile("d", "target: [broken\n")
    own_profile("e", "target: org/other:Q8_0\ndraft: org/no:Q8_0\n")
    folder = profiles.config_dir() / "profiles"
    own = ["org/own:Q8_0", str(folder / "small.gguf")]
    assert candidates(header("none"), "org/t:Q8_0") == own
    found = candidates(header(), "org/t:Q8_0")
    assert found[:2] == own and len(found) > 2, "before those of the family"


@pytest.mark.parametrize("pre", [5, True, np.array([1, 2]), StringArray(b"", 0), [np.array([1])]])
def test_a_pre_tokenizer_may_be_anything(pre, quick):
    assert candidates(header(pre=pre), "org/t") == []
