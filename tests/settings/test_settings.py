"""Every option is said once; where settings come from, which layer wins, and which values are refused."""

import inspect
import json
from pathlib import Path

import pytest
from driver import told
from typer.testing import CliRunner

from specdec_cli import SamplingParams, SpeculativeConfig, load
from specdec_cli.cli.app import app
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions, options_of
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.pairs import profiles
from specdec_cli.pairs.config_layers import resolve
from specdec_cli.server.request_bodies import CompletionBody, parse
from specdec_cli.settings.options import OPTIONS, ModelOptions, flag_of, given_in
from specdec_cli.settings.settings import Settings, check_value


def test_load_takes_the_options_of_models():
    arguments = set(inspect.signature(load).parameters) - {"profile", "speculative", "sampling", "download", "progress"}
    assert arguments == set(options_of(ModelOptions))


def test_run_takes_all_options():
    short, whole = (
        CliRunner().invoke(app, ["run", flag], env={"COLUMNS": "80", "TERM": "dumb"}).output
        for flag in ("--help", "--help-all")
    )
    assert len(short.splitlines()) <= 45
    assert {name for name in OPTIONS if f"--{flag_of(name)} " not in short} == {
        name for name, about in OPTIONS.items() if not about.common
    }
    assert not [name for name in OPTIONS if f"--{flag_of(name)} " not in whole]


def test_help_shows_the_defaults_of_the_command():
    for command, ctx, most in (
        ("run", "as needed", "256"),
        ("chat", "8192", "256"),
        ("serve", "4096", "the rest of the slot's context"),
        ("batch", "4096", "the rest of the slot's context"),
        ("edit", "as needed", "1.5 times the text's tokens + 256"),
    ):
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        assert f"Context in tokens. [default: {ctx}]" in shown
        assert f"Max tokens in the answer. [default: {most}]" in shown


def test_a_request_takes_the_options_of_sampling():
    given = {name: about.default for name, about in options_of(SamplingOptions).items()}
    body = parse(json.dumps({"prompt": "x", **given, "options": {"top_k": 1}}).encode(), CompletionBody)
    assert body.options == given
    assert given_in(body.sampling(0, 9)) == {**given, "max_tokens": 9}


def test_what_is_not_given_is_none_until_settings_fill_it_in():
    assert given_in(SamplingParams(temperature=0.0), SpeculativeConfig(bitwise=False)) == {
        "temperature": 0.0,
        "bitwise": False,
    }
    assert Settings(drafter="none").top_k == OPTIONS["top_k"].default
    assert RecordedSettings.of({"temp": 0.8, "top_k": None}) == RecordedSettings(temperature=0.8)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.0001), ("top_p", 0.0), ("min_p", 1.1), ("seed", -1), ("threads", 0)]
)
def test_bounds_hold_for_every_source(name, value):
    flag = name.replace("_", "-")
    for refused in (lambda: Settings(**{name: value}), lambda: check_value(name, str(value), text=True)):
        with pytest.raises(UsageError, match=f"{flag} cannot be"):
            refused()


# --- layers ---


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


def test_each_layer_wins_over_those_below_it(config, monkeypatch):
    own, demo = config / "profiles" / "own.yaml", profiles.load(profiles.DEMO)
    pair = f"target: {demo.folder / demo.target}\ndraft: {demo.folder / demo.draft}\n"
    own.write_text(pair)
    (config / "config.yaml").write_text("profile: own\n")
    assert resolve(None, {}).draft_tokens == "auto"
    own.write_text(f"{pair}settings:\n  draft_tokens: 4\n")
    assert resolve(None, {}).draft_tokens == 4
    (config / "config.yaml").write_text("profile: own\ndraft_tokens: 5\n")
    assert resolve(None, {}).draft_tokens == 5
    monkeypatch.setenv("SPECDEC_DRAFT_TOKENS", "6")
    assert told("run", "x", "-n", 2)["draft_tokens"] == 6
    assert told("run", "x", "-n", 2, "-k", "auto")["draft_tokens"] == "auto"


def test_the_models_come_from_flag_then_config(config):
    for name in ("first", "second"):
        (config / "profiles" / f"{name}.yaml").write_text(f"target: {name}.gguf\n")
    (config / "config.yaml").write_text("profile: first\n")
    assert resolve(None, {}).target == str(config / "profiles" / "first.gguf")
    assert resolve("second", {}).target == str(config / "profiles" / "second.gguf")
    (config / "config.yaml").write_text("target: big.gguf\ndraft: small.gguf\n")  # a flag beats the config file
    assert resolve(None, {}).target == "big.gguf"
    assert resolve(None, {"target": "other.gguf"}).draft is None
    assert resolve("demo", {}).target.endswith("target.gguf") and resolve("demo", {}).draft.endswith("draft.gguf")
    (config / "config.yaml").write_text("draft: ~/small.gguf\ndrafter: model\n")  # goes with any target
    settings = resolve(None, {"target": "~/big.gguf"})
    assert (settings.target, settings.draft) == (str(Path.home() / "big.gguf"), str(Path.home() / "small.gguf"))
    (config / "config.yaml").write_text("seed: 1234567890123456789\n")
    (config / "profiles" / "demo.yaml").write_text("target: mine.gguf\nsettings:\n  temp: 0.5\n")  # the user's own
    found = resolve(None, {})
    assert (found.target, found.draft) == (str(config / "profiles" / "mine.gguf"), None)
    assert (found.seed, found.temperature, found.max_tokens) == (1234567890123456789, 0.5, 256)


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


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (b"a: [", r"config\.yaml", ""),
        (b"max_token: 5", "unknown key 'max_token'", "Did you mean 'max_tokens'?"),
        (b"temp: hot", r"config\.yaml: temperature", ""),
        (b"max_tokens: '5'", r"config\.yaml: max_tokens", ""),
        (b"max_tokens: yes", r"config\.yaml: max_tokens", ""),
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
