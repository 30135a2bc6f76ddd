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
from itertools import product
from pathlib import Path

import pytest
from driver import SPECDEC, complaint
from hub_pairs import wait_until
from serving import Serving

from specdec_cli.llama import kernels
from specdec_cli.llama.bindings import FOLDER

EVERY = ("SIGSEGV", "SIGILL", "SIGBUS", "abort", "NaN", "hang")
FAULTS = ["SIGSEGV", *(pytest.param(name, marks=pytest.mark.slow) for name in EVERY[1:])]
COMMANDS = {
    "run": (["run", "def f(", "-n", "8", "-k", "2"], b""),
    "chat": (["chat", "-n", "8", "-k", "2", "-m", "TARGET", "-md", "TARGET"], b"def f(\n"),
    "demo": (["demo"], b""),
}
SLOW_DEMO = [name if name != "demo" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]


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
        return specdec([chatting[1] if part == "TARGET" else part for part in command], environment, given)

    return run


@pytest.fixture
def environment(faulty):
    """Of a process with that library, in which nothing is known of it yet."""
    kernels._folder().unlink()

    def fail(fault, when):
        return {**os.environ, "LLAMA_CPP_LIB_PATH": str(faulty), "FAKE_FAULT": fault, "FAKE_WHEN": when}

    yield fail
    wait_until(lambda: not running(faulty), seconds=3)  # or a process is left


def running(folder):
    """Processes that have this library."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and f"LLAMA_CPP_LIB_PATH={folder}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                found.append((process.name, (process / "cmdline").read_bytes()))
        except (OSError, ValueError):
            continue
    return found


def specdec(command, environment, given=b""):
    return subprocess.run(
        [*SPECDEC, *command], input=given, env=environment, capture_output=True, timeout=90, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", SLOW_DEMO)
def test_what_fails_with_the_extra_buffers_is_done_without(answer, environment, command, fault):
    done = answer(command, environment(fault, "extra"))
    assert done.returncode == 0 and done.stdout, done.stderr.decode()
    if command == "run":
        said = " ".join(done.stderr.decode().split())
        assert "the fast kernels of this build of llama.cpp do not work on this processor" in said
        assert "specdec_cli.llama.building install" in said


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_fails_in_any_case_is_an_error_of_two_lines(answer, environment, command, fault):
    done = answer(command, environment(fault, "always"))
    what, to_do = complaint(done.stderr)
    assert (done.returncode, done.stdout) == (1, b"") and "does not work on this processor" in what
    assert "specdec_cli.llama.building install" in to_do


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_goes_on_without_the_extra_buffers_or_does_not_start(environment, fault, monkeypatch):
    for name, value in environment(fault, "extra").items():
        monkeypatch.setenv(name, value)
    with Serving("-t", 1, "-c", 256, "-np", 2, "--drafter", "none") as server:
        status, answer = server.post("/v1/completions", {"prompt": "def f(", "max_tokens": 8})
        assert status == 200 and answer["choices"][0]["text"]
    done = specdec(["serve", "--port", "0"], environment(fault, "always") | {"XDG_CACHE_HOME": os.devnull})
    assert done.returncode == 1 and "does not work on this processor" in complaint(done.stderr)[0]


@pytest.mark.parametrize("fault", ["SIGILL", pytest.param("abort", marks=pytest.mark.slow)])
def test_a_library_that_cannot_be_loaded_is_an_error_of_two_lines(environment, fault):
    done = specdec(["run", "def f("], environment(fault, "import"))
    assert done.returncode == 1 and "does not work on this processor: SIG" in complaint(done.stderr)[0]
    used = "import specdec_cli as s\ntry: s.load\nexcept s.SpecdecError: print('told')"
    done = subprocess.run(
        [sys.executable, "-c", used], env=environment(fault, "import"), capture_output=True, check=True
    )
    assert done.stdout == b"told\n"


@pytest.mark.parametrize(
    ("fault", "when"),
    [
        pytest.param(fault, when, marks=pytest.mark.slow if (fault, when) != ("SIGSEGV", "import") else ())
        for fault, when in product(EVERY, ("import", "extra", "always"))
        if (fault, when) != ("NaN", "import")
    ],
)
def test_doctor_prints_its_whole_table(environment, fault, when):
    own = environment(fault, when)
    done = specdec(["doctor"], own)
    labels = {line.split("  ")[0] for line in done.stdout.decode().splitlines()}
    assert {"specdec", "processor", "GPU offload", "weights", "profiles", "bundled pair"} <= labels
    said = " ".join(done.stdout.decode().split())
    assert done.returncode == 1 and "on this processor" in said and "specdec_cli.llama.building install" in said
    assert done.stderr == b""
    kernels = json.loads(specdec(["doctor", "--json"], own).stdout)["kernels"]
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
    assert specdec(["run", "def f(", "-n", "4"], environment("", "")).returncode == 0


def test_a_trial_that_crashes_leaves_no_files(environment, tmp_path):
    done = specdec(["run", "def f("], environment("SIGSEGV", "always") | {"TMPDIR": str(tmp_path)})
    assert "does not work on this processor" in complaint(done.stderr)[0] and not [*tmp_path.iterdir()]


def test_a_trial_that_is_interrupted_leaves_nothing(environment, faulty):
    own = environment("hang", "always")
    process = subprocess.Popen(
        [*SPECDEC, "run", "def f("], env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: any(b"trial_child.py\0kernels" in command for _, command in running(faulty)), process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.communicate()
