import re
from pathlib import Path

import pytest
from hub_pairs import own_profile

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.pairs import config_layers, profiles, references
from specdec_cli.pairs import pulled_pairs as pairs
from specdec_cli.pairs.model_sources import read_local


def test_the_users_own_profiles_are_listed_and_loaded():
    demo = profiles.load(profiles.DEMO)
    assert (demo.folder / demo.target).is_file() and (demo.folder / demo.draft).is_file()
    bundled = set(profiles.names())
    folder = own_profile("mine", "target: big.gguf\ndraft: small.gguf\nsettings:\n  temp: 0.5\n")
    own_profile("demo", "target: other.gguf\n")
    assert set(profiles.names()) - bundled == {"mine"}
    demo = profiles.load(profiles.DEMO)
    assert (demo.target, demo.draft, demo.settings) == ("other.gguf", None, {})
    mine = profiles.load("mine")
    assert (mine.name, mine.target, mine.draft, mine.settings) == ("mine", "big.gguf", "small.gguf", {"temp": 0.5})
    assert mine.folder == folder


def test_a_profile_may_end_in_yml():
    folder = own_profile("mine", "target: a.gguf\n")
    (folder / "mine.yaml").rename(folder / "mine.yml")
    assert profiles.load("mine").target == "a.gguf"
    own_profile("mine", "target: b.gguf\n")
    assert profiles.load("mine").target == "b.gguf"


@pytest.mark.parametrize("name", ["demo", "~/draft.gguf"])
def test_a_local_draft_is_named_by_its_profile_or_its_path(monkeypatch, name):
    draft = Path(profiles.load(profiles.DEMO).model("draft"))
    monkeypatch.setenv("HOME", str(draft.parent))
    assert read_local(name)[0] == draft


@pytest.mark.parametrize(("name", "hint"), [("demmo", "'demo'"), ("../profiles/demo", "specdec ls")])
def test_an_unknown_profile(name, hint):
    own_profile("mine", "target: x\n")
    with pytest.raises(SpecdecError, match="no profile") as caught:
        profiles.load(name)
    assert name in str(caught.value) and hint in caught.value.hint and caught.value.exit_code == 2


def test_an_unknown_key_is_refused_with_the_nearest_one():
    own_profile("bad", "target: x\ndraf: y\n")
    with pytest.raises(UsageError, match="unknown key 'draf'") as caught:
        profiles.load("bad")
    assert caught.value.hint == "Did you mean 'draft'?"
    own_profile("bad", "target: x\nzzz: y\n")
    with pytest.raises(UsageError) as caught:
        profiles.load("bad")
    assert set(caught.value.hint.removeprefix("Keys: ").removesuffix(".").split(", ")) == KEYS


@pytest.mark.parametrize(
    "line",
    ["gated: maybe", "memory_gb: .nan", f"download_gb: 1{'0' * 400}", "sources: https://example.org", "target:"],
    ids=lambda line: line[:20],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(line):
    own_profile("bad", f"{line}\n" if line == "target:" else f"target: x\n{line}\n")
    with pytest.raises(UsageError, match=r"bad\.yaml") as caught:
        profiles.load("bad")
    assert line.partition(":")[0] in str(caught.value) and "settings has one" in caught.value.hint
    assert len(str(caught.value)) < 200


def test_models_are_of_the_hub_or_beside_the_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = own_profile("mine", "target: org/name:Q8_0\ndraft: folder/small.gguf\n")
    mine = profiles.load("mine")
    assert mine.own and not profiles.load("demo").own
    assert (mine.model("target"), mine.model("draft")) == ("org/name:Q8_0", str(folder / "folder/small.gguf"))
    own_profile("mine", "target: ~/big.gguf\ndraft: /abs/small.gguf\n")
    mine = profiles.load("mine")
    assert (mine.model("target"), mine.model("draft")) == (str(tmp_path / "big.gguf"), "/abs/small.gguf")
    own_profile("mine", "target: org/name/big.gguf\n")
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "big.gguf").touch()  # as a folder of models has it, where the user happens to be
    assert profiles.load("mine").model("target") == "org/name/big.gguf"


@pytest.mark.parametrize("draft", ["org/d:Q8_0", None])
def test_a_profile_that_is_written_is_read_the_same(draft):
    path = profiles.save("a.b+c", "org/t:Q8_0", draft, "caf\u00e9: [bold] #1")
    assert path.parent == profiles.config_dir() / "profiles"
    found = profiles.load("a.b+c")
    assert (found.target, found.draft) == ("org/t:Q8_0", draft)
    assert found.description.endswith("caf\u00e9: [bold] #1") and profiles.is_as_saved("a.b+c", "org/t:Q8_0", draft)
    path.write_text(path.read_text() + "settings:\n  temp: 0.5\n")
    assert not profiles.is_as_saved("a.b+c", "org/t:Q8_0", draft), "what the user has added to is the user's"


# --- the bundled pairs of real models ---

REAL = sorted(path.stem for path in profiles.bundled_dir().glob("*.yaml") if path.stem != profiles.DEMO)
KEYS = {
    *("target", "draft", "description", "why", "licence", "gated", "download_gb", "memory_gb", "fits_gb", "settings"),
    *("sources", "verified"),
}


@pytest.mark.parametrize("name", REAL)
def test_a_bundled_profile_is_complete(name, monkeypatch):
    path = profiles.bundled_dir() / f"{name}.yaml"
    assert set(profiles.read_mapping(path)) == KEYS
    profile = profiles.load(name)
    assert pairs.check_name(name) == name and not profile.own
    for model in (profile.target, profile.draft):
        reference = references.parse(model)
        assert reference and str(reference) == model == profile.model("target" if model == profile.target else "draft")
        assert reference.quant or references.quant_of(reference.file), "it says no quantisation"
    assert profile.download_gb < profile.memory_gb <= profile.fits_gb
    texts = [profile.description, profile.why, profile.licence, profile.verified, *profile.sources]
    assert len(texts) > 4 and all(text.strip() == text != "" and "\n" not in text for text in texts)
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", profile.verified), "when was it verified?"
    assert any("/" in source for source in profile.sources), "a source is a place"
    monkeypatch.setattr(config_layers, "locate", lambda model, command: model)
    found = config_layers.resolve(name, {})
    assert (found.target, found.draft) == (profile.target, profile.draft)
    assert profile.settings and "temperature" in profile.settings, "no sampling is suggested"
    assert all(getattr(found, key) == value for key, value in profile.settings.items())
