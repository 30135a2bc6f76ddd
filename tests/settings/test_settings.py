"""Where settings come from, which layer wins, and which values are refused."""

import re

import pytest
from driver import told

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.pairs import profiles
from specdec_cli.pairs.config_layers import resolve
from specdec_cli.settings.config import Settings
from specdec_cli.settings.options import name_of


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
    assert settings.max_tokens == demo.settings["max_tokens"]


@pytest.mark.parametrize(
    ("upto", "flags", "expected"),
    [("default", [], "auto"), ("profile", [], 4), ("config", [], 5), ("env", [], 6), ("env", ["-k", "7"], 7),
     ("env", ["-k", "auto"], "auto")],
)  # fmt: skip
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
    assert resolve("demo", {}).target.endswith("target.gguf") and resolve("demo", {}).draft.endswith("draft.gguf")


def test_a_users_profile_overrides_the_bundled_one_of_its_name(config):
    (config / "profiles" / "demo.yaml").write_text("target: mine.gguf\nsettings:\n  temp: 0.5\n")
    settings = resolve(None, {})
    assert (settings.target, settings.draft, settings.temperature) == (
        str(config / "profiles" / "mine.gguf"),
        None,
        0.5,
    )
    assert settings.max_tokens == 256


@pytest.mark.parametrize(
    ("line", "value"),
    [("temperature: 1", 1.0), ("temperature: 0.7", 0.7), ("seed:", None),
     ("max_tokens: 12", 12), ("draft_tokens: 7", 7),
     ("draft_tokens: auto", "auto"), ("# nothing yet", None), ('lookahead: "4:3:4"', "4:3:4")],
)  # fmt: skip
def test_values_of_the_right_kind_are_taken(config, line, value):
    (config / "config.yaml").write_text(line + "\n")
    assert getattr(resolve("demo", {}), line.split(":")[0], None) == value


OF_A_WRONG_KIND = (
    *("temp: hot", "temp: true", "temp: [1]", "max_tokens: 1.5", "max_tokens: '5'", "max_tokens: yes", "drafter: 5"),
    *("target: 5", "draft: [x]", "seed: {}", "gpu_layers: all"),
)


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        *[(text, r"config\.yaml", "") for text in ("a: [", "- temp", "words", "temp: 1\ntemp: [")],
        (b"temp: \xff", r"config\.yaml", ""),
        ("max_token: 5", "unknown key 'max_token'", "Did you mean 'max_tokens'?"),
        *[(line, r"config\.yaml: " + name_of(line.split(":")[0]), "") for line in OF_A_WRONG_KIND],
        ("lookahead: 434", "lookahead is 434, not text", "in quotes"),
        *[(f"draft_tokens: {value}", "tokens cannot be", "auto") for value in ("many", "1.5", "true", "[3]", "Auto")],
    ],
)
def test_what_is_wrong_in_config_yaml(config, content, says, hint):
    (config / "config.yaml").write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    with pytest.raises(UsageError, match=says) as caught:
        resolve("demo", {})
    assert caught.value.hint and re.search(hint, caught.value.hint)


@pytest.mark.parametrize(
    ("profile", "given", "says", "hint"),
    [
        (None, {"draft": "x.gguf"}, "without a target", "-m"),
        ("own", {}, "unknown key 'max_token'", "Did you mean 'max_tokens'?"),
    ],
)
def test_a_draft_alone_and_profiles_that_cannot_be_used(config, profile, given, says, hint):
    (config / "profiles" / "own.yaml").write_text("target: x\nsettings:\n  max_token: 5\n")
    with pytest.raises(SpecdecError, match=says) as caught:
        resolve(profile, given)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [{"max_tokens": 0}, {"max_tokens": -1}, {"ctx": 0}, {"threads": 0}, {"threads_draft": 0},
     {"seed": -1}, {"seed": 2**63}, {"drafter": "magic"}, {"accept": "all"}],
)  # fmt: skip
def test_senseless_values_are_usage_errors(config, flags):
    with pytest.raises(UsageError) as caught:
        resolve(None, flags)
    (value,) = flags.values()
    assert str(value) in str(caught.value) and caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "ngram+model"),
        ({"target": "x.gguf"}, "ngram"),
        ({"drafter": "auto"}, "ngram+model"),
        ({"drafter": "model"}, "model"),
    ],
)
def test_the_default_drafts_with_whatever_there_is(given, expected):
    assert resolve(None, given).drafter == expected
