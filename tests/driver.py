"""Running specdec as a person does: in this process, in one of its own, with pipes."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from specdec_cli.cli.app import app

DEMO = Path(__file__).parents[1] / "profiles" / "demo"
TARGET, DRAFT = DEMO / "target.gguf", DEMO / "draft.gguf"
SPECDEC = [sys.executable, "-m", "specdec_cli"]
PROMPT = "def f("
ESCAPE = "\x1b"


def specdec(*args, **options):
    """Run specdec in a process of its own, with pipes for everything."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 30, **options}
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*SPECDEC, *map(str, args)], check=False, **options)


def start(*args, **options):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*SPECDEC, *map(str, args)], **{**pipes, **options})


def run(*args):
    return CliRunner().invoke(app, ["run", *map(str, args)])


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


def assert_refused(result, code: int, *says: str) -> None:
    """In this process: exit code, nothing on stdout, the two lines."""
    assert isinstance(result.exception, SystemExit), result.exception
    what, do = complaint(result.stderr)
    assert result.exit_code == code
    assert result.stdout == ""
    for part in says:
        assert part in f"{what}\n{do}"


def press_until_it_ends(process: subprocess.Popen[bytes], press: Callable[[], object]) -> None:
    """Interrupt a question: between its appearance and the waiting for an answer, a Ctrl-C goes unheard."""
    for _ in range(20):
        press()
        try:
            process.wait(0.5)
            return
        except subprocess.TimeoutExpired:
            continue


def read_terminal(main: int, until: bytes | None = None, seconds: float = 20) -> bytes:
    """What appears on a pseudo-terminal until it is closed, or until some text is there."""
    seen, deadline = b"", time.monotonic() + seconds
    while until is None or until not in seen:
        assert select.select([main], [], [], max(deadline - time.monotonic(), 0))[0], f"hangs after {seen!r}"
        try:
            piece = os.read(main, 65536)
        except OSError:  # the other side has been closed
            break
        if not piece:
            break
        seen += piece
    return seen
