import pytest

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models import profiles


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The user's own configuration folder, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = profiles.config_dir() / "profiles"
    folder.mkdir(parents=True)
    assert tmp_path in folder.parents
    return folder


def test_the_bundled_pair_is_complete(config):
    demo = profiles.load(profiles.DEMO)
    assert (demo.folder / demo.target).is_file() and (demo.folder / demo.draft).is_file()
    assert demo.description and demo.licence
    assert profiles.DEMO in profiles.names()


def test_the_users_own_profiles_are_listed_and_loaded(config):
    bundled = set(profiles.names())
    (config / "mine.yaml").write_text("target: big.gguf\ndraft: small.gguf\nsettings:\n  temp: 0.5\n")
    (config / "notes.txt").write_text("not a profile")
    assert set(profiles.names()) - bundled == {"mine"}
    mine = profiles.load("mine")
    assert (mine.name, mine.target, mine.draft, mine.settings) == ("mine", "big.gguf", "small.gguf", {"temp": 0.5})
    assert mine.folder == config


def test_a_profile_of_the_users_replaces_a_bundled_one(config):
    bundled = profiles.names()
    (config / "demo.yaml").write_text("target: other.gguf\n")
    demo = profiles.load(profiles.DEMO)
    assert (demo.target, demo.draft, demo.settings) == ("other.gguf", None, {})
    assert profiles.names() == bundled


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("demmo", "'demo'"),
        ("zzz", "specdec ls"),
        ("", "specdec ls"),
        ("../profiles/demo", "specdec ls"),
        ("x" * 300, "ls"),
    ],
)
def test_an_unknown_profile(config, name, hint):
    with pytest.raises(SpecdecError) as caught:
        profiles.load(name)
    assert "no profile" in str(caught.value) and name in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 1


MALFORMED = {
    "syntax": "target: [1\n",
    "tabs": "target: x\n\tdraft: y\n",
    "list": "- target\n",
    "text": "just words\n",
    "empty": "",
    "two documents": "target: a\n---\ntarget: b\n",
    "not UTF-8": b"target: \xff\n",
    "control characters": "target: \x00\n",
    "an object": "target: !!python/object/apply:os.system ['true']\n",
    "no target": "draft: y\n",
    "target is a number": "target: 5\n",
    "draft is a number": "target: x\ndraft: 5\n",
    "draft is a list": "target: x\ndraft: [y]\n",
    "settings are a list": "target: x\nsettings: [1]\n",
    "settings are empty": "target: x\nsettings:\n",
    "impossible date": "target: 2024-99-99\n",
    "deep nesting": "target: " + "[" * 5000 + "\n",
    "unhashable key": "target: x\n? [a]\n: b\n",
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_profile_is_a_usage_error(config, content):
    (config / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        profiles.load("bad")
    assert "bad.yaml" in str(caught.value) and caught.value.hint
    assert "\n" not in str(caught.value)


def test_an_unknown_key_is_refused_with_the_nearest_one(config):
    (config / "bad.yaml").write_text("target: x\ndraf: y\n")
    with pytest.raises(UsageError, match="unknown key 'draf'") as caught:
        profiles.load("bad")
    assert caught.value.hint == "Did you mean 'draft'?"


@pytest.mark.parametrize(("word", "hint"), [("tempp", "Did you mean 'temp'?"), ("q", "Keys: temp, seed.")])
def test_suggestions(word, hint):
    assert profiles.suggest(word, iter(["temp", "seed"]), "Keys") == hint
