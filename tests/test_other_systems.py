"""specdec without what Windows and macOS lack, which `other_system.py` takes from child processes on Linux.

No machine with either was at hand: what these tests cannot show is in docs/platforms.md.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hub_pairs
import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, specdec, start
from hub_pairs import NAME, PAIR
from serving import Serving

from specdec_cli.display import steps, terminal
from specdec_cli.display.terminal import can_paint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is taken away is Linux's")

LEFT_OUT = ["specdec_cli.make_drafts.training"]
"""It imports torch, which is installed for its own tests alone."""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The module that acts on child processes."""
    (tmp_path / "site").mkdir()
    copy = shutil.copy(Path(__file__).with_name("other_system.py"), tmp_path / "site" / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    return copy


@pytest.fixture
def windows(site, monkeypatch):
    """Child processes run on something like it, with the encoding that pipes have there."""
    monkeypatch.setenv("OTHER_SYSTEM", "windows")
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")


@pytest.fixture(params=["windows", "macos"])
def system(request, site, monkeypatch):
    monkeypatch.setenv("OTHER_SYSTEM", request.param)


def failures(site, package, *left_out):
    """Modules that cannot be imported, and why."""
    done = subprocess.run([sys.executable, site, package, *left_out], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def succeeded(*args, **options):
    done = specdec(*args, **options)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode("utf-8", "replace")
    return done


@pytest.mark.slow
def test_every_module_is_imported(system, site):
    assert failures(site, "specdec_cli", *LEFT_OUT) == {}


NEEDY = {
    "termios": "import termios",
    "fork": "import os\nFORK = os.fork",
    "hangup": "import signal\nNUMBER = signal.SIGHUP",
    "library": "import ctypes\nSTRLEN = ctypes.CDLL(None).strlen",
    "memory": "from pathlib import Path\nMEMORY = Path('/proc/meminfo').read_text('utf-8')",
}


def test_a_module_that_needs_linux_is_reported(windows, site, tmp_path):
    """The control of the test above. What is asked for only if it is there is no failure."""
    package = tmp_path / "site" / "needy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "careful.py").write_text("import os, signal\nHAS = hasattr(os, 'fork') or hasattr(signal, 'SIGHUP')")
    for name, text in NEEDY.items():
        (package / f"{name}.py").write_text(text)
    assert set(failures(site, "needy")) == {f"needy.{name}" for name in NEEDY}


@pytest.mark.slow
def test_run(system):
    done = succeeded("run", PROMPT, "-n", 8, "-k", 3)
    assert done.stdout.strip() and b"tokens/s" in done.stderr


@pytest.mark.slow
def test_run_is_interrupted(windows):
    """In the middle of an answer, as on Linux: the report comes, and the exit code."""
    with start("run", PROMPT, "-n", 4000, "-c", 4096, "-k", 3) as process:
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"interrupted" in said


@pytest.mark.slow
def test_chat(windows, chatting):
    """A script in UTF-8, which is not the encoding that Python has for pipes on Windows."""
    script = "\ufeffna\u00efve \u2192 \u2713\n/undo\nagain\n/save mine\n".encode()
    done = succeeded("chat", *chatting[:2], "--drafter", "none", "-n", 8, "-c", 512, input=script)
    said = done.stderr.decode("cp1252")
    assert "removed: na\u00efve " in said and said.count("tokens/s, ") == 2 and "saved as mine" in said


@pytest.mark.slow
def test_compare(windows):
    done = succeeded("compare", PROMPT, "class Stack:\n    def", "-k", 3, "-n", 8, "--repeat", 1)
    assert b"k=3" in done.stdout


@pytest.mark.slow
def test_pull(windows, hub, tmp_path):
    """And run, and remove. Without links the cache holds the file where it would have a link."""
    hub_pairs.pulled(hub, tmp_path, *PAIR)
    env = hub_pairs.environment(hub, tmp_path)
    used = list((tmp_path / "hf").rglob("*.gguf"))
    assert len(used) == 2 and not any(path.is_symlink() for path in used)
    assert succeeded("run", "-p", NAME, PROMPT, "-n", 4, env=env).stdout
    succeeded("rm", NAME, "--yes", env=env)
    assert hub_pairs.files(tmp_path) == []


@pytest.mark.slow
def test_serve(windows):
    with Serving("-m", TARGET, "-md", DRAFT, "-c", 256, "-np", 1) as server:
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
        assert status == 200 and answer["usage"]["completion_tokens"] == 8
        assert server.ended(signal.SIGINT) == 130 and "Traceback" not in server.said


def test_a_batch_is_interrupted(windows, tmp_path):
    """Where the event loop takes no signals, they go through Python's own handlers."""
    request = {"url": "/v1/completions", "body": {"prompt": PROMPT, "max_tokens": 100}}
    lines = [json.dumps({"custom_id": str(i), **request}) for i in range(500)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    with start("batch", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "-np", 2, "-c", 128) as process:
        hub_pairs.wait_until(lambda: (tmp_path / "out.jsonl").exists() and (tmp_path / "out.jsonl").stat().st_size)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"interrupted" in said and b"Traceback" not in said


def test_single_keys_are_refused(monkeypatch):
    monkeypatch.setattr(steps, "CAN_READ_KEYS", False)
    assert_refused(call("replay", "--step", "run.jsonl"), 2, "can't read single keys")


def test_a_console_that_obeys_no_escapes_gets_plain_text(monkeypatch):
    class Console:
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert can_paint(Console())
    monkeypatch.setattr(terminal, "detect_legacy_windows", lambda: True)
    assert not can_paint(Console())
