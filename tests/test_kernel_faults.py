"""A build of llama.cpp that dies, hangs or gives wrong numbers: it is found out in a child, and gone around or refused.

A library is put in llama.cpp's place that fails on purpose (kernels/faulty.c).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from driver import assert_refused, specdec, start
from hub_pairs import wait_until
from serving import Serving

from specdec_cli.llama import kernels
from specdec_cli.llama.bindings import FOLDER

FAULTS = ("SIGSEGV", "SIGILL", "SIGABRT", "NaN", "hang")
BRIEF = ("-n", 8, "-k", 2)
COMMANDS = {
    "run": (("run", "def f(", *BRIEF), b""),
    "chat": (("chat", *BRIEF, "-m", "TARGET", "-md", "TARGET"), b"def f(\n"),
    "demo": (("demo",), b""),
}
QUICK = ("run", "SIGSEGV")
SLOW_BUT_ONE = [
    pytest.param(*each, marks=() if each == QUICK else pytest.mark.slow) for each in product(COMMANDS, FAULTS)
]
DEAD = "does not work on this processor"
REPAIR = "specdec_cli.llama.building install"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The folder of the library that fails."""
    folder = tmp_path_factory.mktemp("faulty")
    for library in FOLDER.glob("*.so*"):
        shutil.copy(library, folder / library.name)
    real = next(path for path in folder.glob("libllama.so.*"))
    (folder / "libllama.so").unlink()
    source = Path(__file__).parent / "kernels" / "faulty.c"
    include = Path(sysconfig.get_path("purelib")) / "include"
    command = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{include}", source, "-o", folder / "libllama.so"]
    subprocess.run([*command, "-Wl,--no-as-needed", real, "-Wl,-rpath,$ORIGIN"], check=True)
    return folder


@pytest.fixture
def answer(chatting):
    """Runs one of COMMANDS."""

    def run(name, environment):
        command, given = COMMANDS[name]
        args = [chatting[1] if part == "TARGET" else part for part in command]
        return specdec(*args, env=environment, input=given, timeout=240)

    return run


@pytest.fixture
def environment(faulty, tmp_path):
    """Of a process with that library, in which nothing is known of it yet. It leaves no process and no file."""
    kernels._folder().unlink()
    (tmp_path / "tmp").mkdir()
    own = {**os.environ, "LLAMA_CPP_LIB_PATH": str(faulty), "TMPDIR": str(tmp_path / "tmp")}
    yield lambda fault, when: {**own, "FAKE_FAULT": fault, "FAKE_WHEN": when}
    wait_until(lambda: not running(faulty))
    assert not [*(tmp_path / "tmp").iterdir()]


def running(folder):
    """Processes that have this library."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = f"LLAMA_CPP_LIB_PATH={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
            if own and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_bytes())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_fails_with_the_extra_buffers_is_done_without(answer, environment, command, fault):
    done = answer(command, environment(fault, "extra"))
    assert done.returncode == 0 and done.stdout, done.stderr.decode()
    if command == "run":
        said = " ".join(done.stderr.decode().split())
        assert "the fast kernels of this build of llama.cpp do not work on this processor" in said
        assert REPAIR in said


@pytest.mark.parametrize(("command", "fault"), SLOW_BUT_ONE)
def test_what_fails_in_any_case_is_an_error_of_two_lines(answer, environment, command, fault):
    assert_refused(answer(command, environment(fault, "always")), 1, DEAD, REPAIR)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_goes_on_without_the_extra_buffers_or_does_not_start(environment, fault, monkeypatch):
    for name, value in environment(fault, "extra").items():
        monkeypatch.setenv(name, value)
    with Serving("-t", 1, "-c", 256, "-np", 2, "--drafter", "none") as server:
        status, answer = server.post("/v1/completions", {"prompt": "def f(", "max_tokens": 8})
        assert status == 200 and answer["choices"][0]["text"]
    own = environment(fault, "always") | {"XDG_CACHE_HOME": os.devnull}
    assert_refused(specdec("serve", "--port", 0, env=own, timeout=240), 1, DEAD)


def test_a_library_that_cannot_be_loaded_is_an_error_of_two_lines(environment):
    own = environment("SIGILL", "import")
    assert_refused(specdec("run", "def f(", env=own), 1, f"{DEAD}: SIGILL")
    used = "import specdec_cli as s\ntry: s.load\nexcept s.SpecdecError: print('told')"
    done = subprocess.run([sys.executable, "-c", used], env=own, capture_output=True, check=True)
    assert done.stdout == b"told\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "when"), [each for each in product(FAULTS, ("import", "extra", "always")) if each != ("NaN", "import")]
)
def test_doctor_prints_its_whole_table(environment, fault, when):
    own = environment(fault, when)
    done = specdec("doctor", env=own, timeout=240)
    labels = {line.split("  ")[0] for line in done.stdout.decode().splitlines()}
    assert {"specdec", "processor", "GPU offload", "weights", "profiles", "bundled pair"} <= labels
    said = " ".join(done.stdout.decode().split())
    assert (done.returncode, done.stderr) == (1, b"") and "on this processor" in said and REPAIR in said
    if when == "extra":
        kernels = json.loads(specdec("doctor", "--json", env=own, timeout=240).stdout)["kernels"]
        assert kernels["problem"] and kernels["repair"]


@pytest.mark.slow
def test_a_verdict_is_kept_until_the_build_changes(environment, faulty):
    own = environment("SIGSEGV", "extra")
    kept, asked = kernels._folder(), "from specdec_cli.llama import kernels; kernels.verdict()"

    def ask(environment):
        subprocess.run([sys.executable, "-c", asked], env=environment, check=True)
        return [*kept.iterdir()]

    (record,) = ask(own)
    assert json.loads(record.read_text())["fault"] == "SIGSEGV"
    before = record.stat().st_mtime_ns
    assert ask(own) == [record] and record.stat().st_mtime_ns == before
    os.utime(faulty / "libllama.so")
    assert len(ask(own)) == 2
    record.write_text("{")
    assert specdec("run", "def f(", "-n", 4, env=environment("", "")).returncode == 0


def test_a_trial_that_is_interrupted_leaves_no_process(environment, faulty, tmp_path):
    own = environment("hang", "always") | {"TMPDIR": str(tmp_path)}  # where a second Ctrl-C may leave a folder
    process = start("run", "def f(", env=own)
    try:
        wait_until(lambda: any(b"trial_child.py\0kernels" in command for command in running(faulty)), process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.communicate()
