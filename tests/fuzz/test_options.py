"""Every option of every command and every variable of the environment, with odd values."""

import random

import pytest
from driver import DRAFT
from fuzzing import EXIT_CODES, cases, specdec
from hostile import assert_shown, payload

from specdec_cli.cli.app import COMMANDS, load

ODD = (
    *("", " ", "-", "--", "-1", "0", "1", "2", "1e999", "nan", "inf", "-0", "0.5", "9" * 30, "9" * 5000, "65536"),
    *("\u00b2", "1_0", "0x10", "auto", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "..", "~", "a=b"),
    *("k=8", "a:b", "x" * 5000),
)
VARIABLES = (
    *("HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_ETAG_TIMEOUT"),
    *("HF_HUB_DOWNLOAD_TIMEOUT", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"),
    *("LANG", "LC_ALL", "TERMINAL_WIDTH", "XDG_CONFIG_HOME", "TMPDIR"),
    *("SPECDEC_DEBUG", "SPECDEC_DRAFTER", "_SPECDEC_COMPLETE", "COMP_WORDS", "COMP_CWORD", "PWD"),
)
NEEDED = {
    "run": ("x", "-n", "1"),
    "pull": ("none", "--dry-run"),
    "check": (DRAFT,),
    "show": ("demo",),
    "rm": ("none",),
    "replay": ("none.jsonl",),
    "compare": ("x", "-n", "1", "--repeat", "1"),
    "serve": ("--host", "192.0.2.1"),  # not an address of this machine
    "tune": ("--what-if", "none"),
    "draft prune": ("-m", DRAFT, "--keep-layers", "0"),
    "draft quantize": ("-m", DRAFT, "--type", "Q4_0"),
}
"""With what a command is refused or done soon, whatever else it is given."""


@pytest.fixture(scope="module")
def known() -> list[tuple[str, tuple[str, bool, str | None]]]:
    """Every option with its command: its name, whether it's a flag, its variable."""
    commands = {name: load(name) for name in COMMANDS}
    commands |= {f"draft {name}": each for name, each in commands["draft"].commands.items()}
    found = [
        (name, (max(option.opts, key=len), option.is_flag, option.envvar))
        for name, command in commands.items()
        for option in command.params
        if option.opts[0].startswith("-")
    ]
    assert len(found) > 80
    return found


def command_line(chance: random.Random, known) -> tuple[list[str], dict[str, str]]:
    """A command line and an environment; a value never waits for the network, nor measures for long."""
    name, _ = chance.choice(known)
    args, environment = [*name.split(), *map(str, NEEDED.get(name, ()))], {"HF_ENDPOINT": "http://127.0.0.1:9"}
    own = [option for command, option in known if command == name]
    for flag, is_flag, variable in chance.sample(own, min(len(own), chance.choice((1, 1, 2)))):
        value = chance.choice(ODD) if chance.random() < 0.8 else payload(chance).replace("\udcff", "")
        if flag in ("--seconds", "--repeat", "--max-tokens", "--ctx", "--threads") and value.isdigit():
            value = "1"
        if flag == "--output" or (flag == "--trace" and value.startswith("/")):
            value = "out.gguf"  # nothing outside is written, not even where that is asked for
        if is_flag:
            args.append(flag)
        elif variable and chance.random() < 0.4:
            environment[variable if isinstance(variable, str) else variable[0]] = value
        else:
            args += [flag, value]
    if chance.random() < 0.3:
        value = chance.choice(ODD[:-1]) if chance.random() < 0.7 else payload(chance).replace("\udcff", "")
        environment[chance.choice(VARIABLES)] = value
    return args, environment


@cases(1000)
def test_options(tmp_path, chance, known, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args, environment = command_line(chance, known)
    ended = specdec(*args, seconds=10, **environment)
    about = ascii((args, environment))
    if "SPECDEC_DEBUG" in environment:
        assert ended.code in EXIT_CODES, f"{about}\n{ended!a}"
    else:
        ended.assert_alive(about, seconds=20)
        assert_shown(ended.told, terminal="FORCE_COLOR" in environment)
