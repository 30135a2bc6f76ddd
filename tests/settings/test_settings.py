"""Where settings come from, which layer wins, and which values are refused."""

from pathlib import Path

import pytest
from driver import told

from specdec_cli.decoding.errors import UsageError
from specdec_cli.pairs import profiles
from specdec_cli.pairs.config_layers import resolve
from specdec_cli.settings.config import Settings


@pytest.fixture
def config():
    """The user's own configuration folder, empty."""
    (profiles.config_dir() / "profiles").mkdir(parents=True)
    return profiles.config_dir()


def test_with_nothing_named_the_demo_pair_runs_and_with_a_model_the_defaults_hold(config):
    assert resolve(None, {"target": "x.gguf"}) == Settings(target="x.gguf", drafter="ngram")
    settings, demo = resolve(None, {}), profiles.load(profiles.DEMO)
    assert settings == resolve(profiles.DEMO, {}) == resolve(None, {"target": "demo"})
    assert settings.target == str(demo.folder / demo.target) and settings.draft == str(demo.folder / demo.draft)
    assert (settings.max_tokens, settings.drafter) == (demo.settings["max_tokens"], "ngram+model")


@pytest.mark.parametrize(
    ("upto", "flags", "expected"),
    [("default", [], "auto"), ("profile", [], 4), ("config", [], 5), ("env", [], 6), ("env", ["-k", "auto"], "auto")],
)
def test_each_layer_wins_over_those_below_it(config, monkeypatch, upto, flags, expected):
    """-k has a value in every layer up to the one named."""
    layers = ["default", "profile", "config", "env"]
    present = layers[: layers.index(upto) + 1]
    demo = profiles.load(profiles.DEMO)
    own = "settings:\n  draft_tokens: 4\n" if "profile" in present else ""
    pair = f"target: {demo.folder / demo.target}\ndraft: {demo.folder / demo.draft}\n"
    (config / "profiles" / "own.yaml").write_text(pair + own)
    (config / "config.yaml").write_text("profile: own\n" + ("draft_tokens: 5\n" if "config" in present else ""))
    if "env" in present:
        monkeypatch.setenv("SPECDEC_DRAFT_TOKENS", "6")
    assert told("run", "x", "-n", 2, *flags)["draft_tokens"] == expected


def test_the_profile_comes_from_flag_then_config(config):
    for name in ("first", "second"):
        (config / "profiles" / f"{name}.yaml").write_text(f"target: {name}.gguf\n")
    (config / "config.yaml").write_text("profile: first\n")
    assert resolve(None, {}).target == str(config / "profiles" / "first.gguf")
    assert resolve("second", {}).target == str(config / "profiles" / "second.gguf")
    (config / "config.yaml").write_text("target: big.gguf\ndraft: small.gguf\n")  # a flag beats the config file
    assert resolve(None, {}).target == "big.gguf"
    assert resolve(None, {"target": "other.gguf"}).draft is None
    assert resolve("demo", {}).target.endswith("target.gguf") and resolve("demo", {}).draft.endswith("draft.gguf")


def test_a_draft_of_the_config_file_goes_with_any_target_and_paths_may_begin_at_home(config):
    (config / "config.yaml").write_text("draft: ~/small.gguf\ndrafter: model\n")
    settings = resolve(None, {"target": "~/big.gguf"})
    assert (settings.target, settings.draft) == (str(Path.home() / "big.gguf"), str(Path.home() / "small.gguf"))


def test_a_target_that_is_named_replaces_the_profile_of_the_config_file(config):
    (config / "profiles" / "own.yaml").write_text("target: own.gguf\ndraft: small.gguf\n")
    (config / "config.yaml").write_text("profile: own\n")
    assert resolve(None, {"target": "demo"}) == resolve("demo", {})
    assert resolve(None, {"target": "big.gguf"}).draft is None
    found = resolve(None, {"draft": "demo"})
    assert (found.target, found.draft) == (str(config / "profiles" / "own.gguf"), resolve("demo", {}).draft)
    assert resolve("own", {"target": "demo"}).target == resolve("demo", {}).target
    (config / "profiles" / "alone.yaml").write_text("target: own.gguf\n")
    with pytest.raises(UsageError, match="the profile alone has no draft"):
        resolve(None, {"draft": "alone"})


def test_a_users_profile_overrides_the_bundled_one_of_its_name(config):
    (config / "profiles" / "demo.yaml").write_text("target: mine.gguf\nsettings:\n  temp: 0.5\n")
    (config / "config.yaml").write_text("seed: 1234567890123456789\n")
    settings = resolve(None, {})
    assert settings.seed == 1234567890123456789
    assert (settings.target, settings.draft) == (str(config / "profiles" / "mine.gguf"), None)
    assert (settings.temperature, settings.max_tokens) == (0.5, 256)


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (b"a: [", r"config\.yaml", ""),
        (b"- temp", r"config\.yaml", ""),
        (b"temp: \xff", r"config\.yaml", ""),
        (b"max_token: 5", "unknown key 'max_token'", "Did you mean 'max_tokens'?"),
        (b"temp: hot", r"config\.yaml: temperature", ""),
        (b"temp: true", r"config\.yaml: temperature", ""),
        (b"max_tokens: '5'", r"config\.yaml: max_tokens", ""),
        (b"max_tokens: yes", r"config\.yaml: max_tokens", ""),
        (b"draft: [x]", r"config\.yaml: draft", ""),
        (b"lookahead: 434", "lookahead is 434, not text", "Put it in quotes."),
        (b"draft_tokens: many", "tokens cannot be", "auto"),
        (b"draft_tokens: true", "tokens cannot be", "auto"),
        (b"seed: 99999999999999999999", "seed is .*, not", ""),
    ],
)
def test_what_is_wrong_in_config_yaml(config, content, says, hint):
    (config / "config.yaml").write_bytes(content + b"\n")
    with pytest.raises(UsageError, match=says) as caught:
        resolve("demo", {})
    assert caught.value.hint and hint in caught.value.hint


def test_a_draft_without_a_target_and_a_profile_with_an_unknown_setting(config):
    (config / "profiles" / "own.yaml").write_text("target: x\nsettings:\n  max_token: 5\n")
    with pytest.raises(UsageError, match="unknown key 'max_token'"):
        resolve("own", {})
    with pytest.raises(UsageError, match="without a target") as caught:
        resolve(None, {"draft": "x.gguf"})
    assert "-m" in caught.value.hint
