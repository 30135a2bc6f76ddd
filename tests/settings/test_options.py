"""Every option is said once: whatever takes options takes these."""

import inspect
import json

import pytest
from typer.testing import CliRunner

from specdec_cli import SamplingParams, SpeculativeConfig, load
from specdec_cli.cli.app import app
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions, options_of
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.server.request_bodies import CompletionBody, parse
from specdec_cli.settings.config import Settings, check_value
from specdec_cli.settings.options import OPTIONS, ModelOptions, flag_of, given_in


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
        for flag in ("--help", "--help-all"):
            shown = CliRunner().invoke(app, [command, flag], env={"COLUMNS": "200", "TERM": "dumb"}).output
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
