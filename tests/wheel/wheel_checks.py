"""The wheel, built and used as somebody does who has no checkout: from an empty venv, in a folder of its own, without
this user's settings. `run` beside this file starts it.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from serving import Serving

CHECKOUT = Path(__file__).parents[2]
MAX_BYTES = 13_000_000
LEFT_OUT = {"specdec_cli/profiles/demo/eagle3.gguf", "specdec_cli/profiles/demo/medusa.gguf"}
OURS = {**os.environ, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""Read here, not in a test, where pip's cache would be another."""


def ours(*command):
    """A command in this user's environment, which must succeed. Returns what it prints."""
    done = subprocess.run([*map(str, command)], env=OURS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Elsewhere:
    """A venv, and a folder to use it in."""

    def __init__(self, folder):
        self.venv, self.folder, self.temporary = folder / "venv", folder / "elsewhere", folder / "tmp"
        for each in (self.folder, self.temporary, folder / "home"):
            each.mkdir()
        # Nothing else of the caller's may help it.
        self.env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        self.env |= {"LANG": "C.UTF-8", "TMPDIR": str(self.temporary), "HOME": str(folder / "home")}

    def program(self, name):
        return str(self.venv / "bin" / name)

    def run(self, *args, timeout=300):
        command = [self.program(args[0]), *args[1:]]
        pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(command, cwd=self.folder, env=self.env, timeout=timeout, check=False, **pipes)

    def said(self, *args, timeout=300):
        done = self.run(*args, timeout=timeout)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        return done.stdout

    def install(self, what):
        """--only-binary: what cannot be had without compiling is an error."""
        ours(self.program("python"), "-m", "pip", "install", "--quiet", "--only-binary", "llama-cpp-python", what)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    ours(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CHECKOUT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """With the wheel, and without its extra.

    The compiled llama-cpp-python is copied from this Python, file by file as its RECORD says: it is the build that all
    other tests use. pip's cache would do, but it does not know CMAKE_ARGS, it is elsewhere for each ACCEL, and when it
    has been emptied, or a newer version is out, pip compiles for minutes and says nothing.
    """
    place = Elsewhere(tmp_path_factory.mktemp("user"))
    ours(sys.executable, "-m", "venv", place.venv)
    asked = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = Path(ours(place.program("python"), "-I", "-c", asked).strip())
    for file in importlib.metadata.files("llama-cpp-python"):
        if ".." not in file.parts and "__pycache__" not in file.parts:
            copy = packages / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), copy)
    place.install(str(wheel))
    yield place
    shutil.rmtree(place.venv)


@pytest.fixture(scope="module")
def complete(elsewhere, wheel):
    """The same with the extra."""
    elsewhere.install(f"{wheel}[serve]")
    return elsewhere


def files(name):
    """Of a folder of the checkout."""
    found = (path for path in (CHECKOUT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(CHECKOUT).as_posix() for path in found}


def test_it_holds_package_profiles_and_licences_and_is_small(wheel):
    assert wheel.stat().st_size < MAX_BYTES
    inside = set(ZipFile(wheel).namelist())
    about = {name for name in inside if name.split("/")[0].endswith(".dist-info")}
    assert inside - about == (files("specdec_cli") | {f"specdec_cli/{name}" for name in files("profiles")}) - LEFT_OUT
    assert "specdec_cli/profiles/demo/LICENSES.md" in inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in about)


def test_both_packages_come_from_the_venv(elsewhere):
    asked = "import llama_cpp, specdec_cli; print(llama_cpp.__file__, specdec_cli.__file__, sep='\\n')"
    assert all(line.startswith(f"{elsewhere.venv}/") for line in elsewhere.said("python", "-c", asked).splitlines())


def test_version(elsewhere, wheel):
    assert elsewhere.said("specdec", "--version").strip() == f"specdec {wheel.name.split('-')[1]}"


def test_without_the_extra_serve_says_what_to_install(elsewhere):
    done = elsewhere.run("specdec", "serve", "--port", "0")
    said = done.stdout + done.stderr
    assert done.returncode == 2 and said.count("\n") == 2 and 'pip install "specdec-cli[serve]"' in said


def test_pairs_are_listed(complete):
    listed = complete.said("specdec", "ls")
    assert "demo" in listed and "qwen3-8b" in listed


def test_an_answer(complete):
    complete.said("specdec", "run", "-n", "16", "def add(a, b):")


def test_the_readmes_first_example_of_python(complete):
    code = (CHECKOUT / "README.md").read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    assert "from specdec_cli import" in code
    complete.said("python", "-c", code)


def test_a_server(complete):
    with Serving(program=[complete.program("specdec")], cwd=complete.folder, env=complete.env) as server:
        assert server.request("GET", "/health")[2] == b'{"status":"ok"}'
        status, answer = server.post("/v1/completions", {"prompt": "def add(a, b):", "max_tokens": 16})
        assert status == 200 and answer["choices"][0]["text"].strip() and answer["usage"]["completion_tokens"]
        page = server.request("GET", "/")[2].decode()
        assert "</html>" in page and "<style>" in page and "<script" in page
        assert server.ended(within=30) == 143 and "Traceback" not in server.said


def test_a_demo_in_a_pipe(complete):
    assert "with drafts" in complete.said("specdec", "demo")


def test_no_file_is_left_behind(complete):
    assert not [*complete.temporary.iterdir(), *complete.folder.iterdir()]
