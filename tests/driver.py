"""Running specdec as a person does: in this process, or in one of its own, with pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.pairs import profiles

DEMO = Path(__file__).parents[1] / "profiles" / "demo"
TARGET, DRAFT = DEMO / "target.gguf", DEMO / "draft.gguf"
SPECDEC = [sys.executable, "-m", "specdec_cli"]
PROMPT = "def f("
ESCAPE = "\x1b"


def specdec(*args, **options):
    """Run specdec in a process of its own, with pipes for everything."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 120, **options}
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*SPECDEC, *map(str, args)], check=False, **options)


def start(*args, **options):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*SPECDEC, *map(str, args)], **{**pipes, **options})


def call(*args, **environment):
    """Run specdec in this process."""
    return CliRunner().invoke(app, [*map(str, args)], env=environment)


def piped(content, *args):
    """The same, with these bytes in a pipe to it."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    with os.fdopen(read, "rb") as stdin, patch("typer.testing.make_input_stream", lambda *_: stdin):
        return CliRunner().invoke(app, [*map(str, args)])


def run(*args):
    return call("run", *args)


def succeeded(*args, **environment):
    """The result of a command that has nothing to complain of."""
    done = call(*args, **environment)
    assert done.exit_code == 0, done.stderr or repr(done.exception)
    return done


def told(*args):
    """What a command says with --json: one object on one line, and nothing else."""
    done = succeeded(*args, "--json")
    assert (done.stderr, done.stdout.count("\n")) == ("", 1), done.stderr
    return json.loads(done.stdout)


def configure(text: str) -> None:
    """Write the user's config.yaml."""
    profiles.config_dir().mkdir(parents=True, exist_ok=True)
    (profiles.config_dir() / "config.yaml").write_text(text)


def complaint(stderr: str | bytes) -> tuple[str, str]:
    """The two lines of an error: what, and what to do."""
    text = stderr.decode() if isinstance(stderr, bytes) else stderr
    assert "Traceback" not in text
    lines = text.splitlines()
    assert len(lines) == 2, text
    what, do = lines
    assert what.startswith("specdec: ") and len(what) > 15
    assert do.startswith("  ") and len(do) > 10
    return what, do


def assert_refused(result, code: int, *says: str) -> str:
    """In this process or another: exit code, nothing on stdout, the two lines. Returns the first."""
    what, do = complaint(result.stderr)
    exit_code = result.returncode if isinstance(result, subprocess.CompletedProcess) else result.exit_code
    assert (exit_code, len(result.stdout)) == (code, 0)
    for part in says:
        assert part in f"{what}\n{do}"
    return what


def assert_recorded(path: Path, found: object) -> None:
    """Compare with a stored text or JSON. To accept a change, delete the file, run the test and look at the result."""
    if not path.exists():
        text = found if isinstance(found, str) else json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, "utf-8")
        raise AssertionError(f"{path.name} was not there; it has been written: look at it and run again")
    recorded = path.read_text("utf-8")
    assert found == (recorded if isinstance(found, str) else json.loads(recorded))
