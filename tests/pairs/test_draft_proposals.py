"""Which drafts are known for a target: proposals by its tokenizer's family and by profiles, and drafts made of it."""

import functools
import os

import numpy as np
import pytest
import yaml
from hub_pairs import own_profile

from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.pairs import made_drafts as drafts
from specdec_cli.pairs import profiles, references
from specdec_cli.pairs.draft_proposals import candidates

FAMILIES = yaml.safe_load((profiles.bundled_dir() / "families" / "drafts.yaml").read_text("utf-8"))

READ = functools.cache(profiles.load)


def header(architecture="qwen3", pre="qwen2", model="gpt2") -> Header:
    about = {"general.architecture": architecture, "tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre}
    return Header("t.gguf", 3, about, (), 0)


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


def test_gemma4_is_a_tokenizer_of_its_own(quick):
    assert candidates(header("gemma4", "default", "gemma4"), "org/t") == candidates(header("gemma4", "gemma4"), "org/t")


@pytest.mark.parametrize("pre", [5, True, np.array([1, 2]), StringArray(b"", 0), [np.array([1])]])
def test_a_pre_tokenizer_may_be_anything(pre, quick):
    assert candidates(header(pre=pre), "org/t") == []


# Drafts made: what is remembered, and when it is not believed any more


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "models" / f"{name}.gguf" for name in ("target", "draft")]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode())
    drafts.remember(*paths, "layers 0-3 of 6")
    return paths


def test_the_latest_is_found_by_any_path(files, tmp_path, monkeypatch):
    target, draft = files
    (tmp_path / "link.gguf").symlink_to(target)
    monkeypatch.chdir(target.parent)
    assert drafts.find(target) == drafts.find(tmp_path / "link.gguf") == draft
    assert drafts.find(target.relative_to(target.parent)) == draft
    other = draft.with_name("other.gguf")
    other.write_bytes(b"other")
    drafts.remember(target, other.relative_to(target.parent), "Q2_K")
    assert drafts.find(target) == other


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "change", [lambda path: path.write_bytes(b"something else"), lambda path: os.utime(path, (1, 1)), os.unlink]
)
def test_other_files_are_not_believed(files, which, change):
    change(files[which])
    assert drafts.find(files[0]) is None


def test_parts_of_a_split_target_count_too(tmp_path):
    parts = [tmp_path / f"big-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"part")
    (tmp_path / "draft.gguf").write_bytes(b"draft")
    drafts.remember(parts[0], tmp_path / "draft.gguf", "Q2_K")
    assert drafts.find(parts[0]) == tmp_path / "draft.gguf"
    parts[1].write_bytes(b"another part")
    assert drafts.find(parts[0]) is None
