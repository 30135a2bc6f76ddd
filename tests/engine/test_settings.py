import json

import pytest
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.config import Settings
from specdec_cli.engine.config_layers import resolve
from specdec_cli.models import profiles


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The user's own configuration folder, empty; nothing in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in Settings.__dataclass_fields__:
        monkeypatch.delenv(f"SPECDEC_{name.upper()}", raising=False)
    monkeypatch.delenv("SPECDEC_PROFILE", raising=False)
    monkeypatch.setenv("SPECDEC_THREADS", "1")  # llama.cpp's threads spin: a busy machine must not slow the tests
    folder = profiles.config_dir()
    (folder / "profiles").mkdir(parents=True)
    return folder


def test_with_nothing_named_the_demo_pair_runs_and_with_a_model_the_defaults_hold(config):
    assert resolve(None, {"target": "x.gguf"}) == Settings(target="x.gguf")
    settings, demo = resolve(None, {}), profiles.load(profiles.DEMO)
    assert settings == resolve(profiles.DEMO, {}) == resolve(None, {"target": "demo"})
    assert settings.target == str(demo.folder / demo.target) and settings.draft == str(demo.folder / demo.draft)
    assert settings.max_tokens == demo.settings["max_tokens"]


def write_layers(config, monkeypatch, upto: str) -> None:
    """Give -k a value in every layer up to the one named."""
    layers = ["default", "profile", "config", "env"]
    present = layers[: layers.index(upto) + 1]
    demo = profiles.load(profiles.DEMO)
    own = "settings:\n  draft_tokens: 4\n" if "profile" in present else ""
    pair = f"target: {demo.folder / demo.target}\ndraft: {demo.folder / demo.draft}\n"
    (config / "profiles" / "own.yaml").write_text(pair + own)
    (config / "config.yaml").write_text("profile: own\n" + ("draft_tokens: 5\n" if "config" in present else ""))
    if "env" in present:
        monkeypatch.setenv("SPECDEC_DRAFT_TOKENS", "6")


@pytest.mark.parametrize(
    ("upto", "flags", "expected"),
    [("default", [], "auto"), ("profile", [], 4), ("config", [], 5), ("env", [], 6), ("env", ["-k", "7"], 7),
     ("env", ["-k", "auto"], "auto")],
)  # fmt: skip
def test_each_layer_wins_over_those_below_it(config, monkeypatch, upto, flags, expected):
    write_layers(config, monkeypatch, upto)
    result = CliRunner().invoke(app, ["run", "x", "-n", "2", "--json", *flags])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["draft_tokens"] == expected


def test_settings_from_the_environment(config, monkeypatch):
    settings = {"seed": 7, "accept": "match", "drafter": "none"}
    for name, value in settings.items():
        monkeypatch.setenv(f"SPECDEC_{name.upper()}", str(value))
    result = CliRunner().invoke(app, ["run", "x", "-n", "2", "--json"])
    assert settings.items() <= json.loads(result.stdout).items()


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
    assert (settings.target, settings.draft, settings.temp) == (str(config / "profiles" / "mine.gguf"), None, 0.5)
    assert settings.max_tokens == 256


def test_models_by_flag_replace_those_of_the_profile(config):
    settings = resolve("demo", {"draft": "other.gguf"})
    assert settings.draft == "other.gguf" and settings.target.endswith("target.gguf")


@pytest.mark.parametrize(
    ("profile", "given", "says", "hint"),
    [
        (None, {"draft": "x.gguf"}, "without a target", "-m"),
        ("demmo", {}, "no profile 'demmo'", "Did you mean 'demo'?"),
    ],
)
def test_a_draft_alone_and_an_unknown_profile_are_refused(config, profile, given, says, hint):
    with pytest.raises(SpecdecError, match=says) as caught:
        resolve(profile, given)
    assert hint in caught.value.hint


@pytest.mark.parametrize("where", ["config.yaml", "profiles/own.yaml"])
def test_an_unknown_key_is_refused_with_the_nearest_one(config, where):
    text = "max_token: 5\n" if where == "config.yaml" else "target: x\nsettings:\n  max_token: 5\n"
    (config / where).write_text(text)
    with pytest.raises(UsageError, match="unknown key 'max_token'") as caught:
        resolve(None if where == "config.yaml" else "own", {"target": "x.gguf"})
    assert caught.value.hint == "Did you mean 'max_tokens'?"


@pytest.mark.parametrize(
    "content", ["a: [", "- temp\n", "words", b"temp: \xff", "temp: 2024-99-99", "temp: 1\ntemp: [\n"]
)
def test_a_malformed_config_is_a_usage_error(config, content):
    (config / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"config\.yaml") as caught:
        resolve(None, {})
    assert caught.value.hint


@pytest.mark.parametrize(
    "line",
    ["temp: hot", "temp: true", "temp: [1]", "max_tokens: 1.5", "max_tokens: '5'", "max_tokens: yes", "drafter: 5",
     "target: 5", "draft: [x]", "seed: {}", "gpu_layers: all"],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(config, line):
    (config / "config.yaml").write_text(line + "\n")
    with pytest.raises(UsageError) as caught:
        resolve("demo", {})
    assert line.split(":")[0] in str(caught.value) and caught.value.hint


def test_text_that_yaml_takes_for_a_number(config):
    (config / "config.yaml").write_text("lookahead: 4:3:4\n")
    with pytest.raises(UsageError, match="lookahead is 14584, not text") as caught:
        resolve("demo", {})
    assert "quotes" in caught.value.hint


@pytest.mark.parametrize("value", ["many", "1.5", "true", "[3]", "Auto"])
def test_a_draft_length_is_a_number_or_auto(config, value):
    (config / "config.yaml").write_text(f"draft_tokens: {value}\n")
    with pytest.raises(UsageError, match="draft tokens cannot be") as caught:
        resolve("demo", {})
    assert "auto" in caught.value.hint


@pytest.mark.parametrize(
    ("line", "value"),
    [("temp: 1", 1.0), ("temp: 0.7", 0.7), ("seed:", None), ("max_tokens: 12", 12), ("draft_tokens: 7", 7),
     ("draft_tokens: auto", "auto"), ("# nothing yet", None), ('lookahead: "4:3:4"', "4:3:4")],
)  # fmt: skip
def test_values_of_the_right_kind_are_taken(config, line, value):
    (config / "config.yaml").write_text(line + "\n")
    assert getattr(resolve("demo", {}), line.split(":")[0], None) == value


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
