"""Make the helpers beside this file importable from every folder of tests, and keep the user's settings out."""

import fcntl
import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
    del os.environ[name]  # huggingface_hub reads them when it's imported
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # many tests expect the rounding of a CPU
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent))  # for training/, which is not part of the package

# Typer builds all commands anew for each command line that is run in this process; once is enough.
typer.testing._get_command = functools.cache(typer.testing._get_command)

pytest_plugins = ["engines"]
BY_FOLDER = ("fuzz", "real")
"""Folders whose tests are marked with their name."""
MAX_READ = 1 << 25
"""Larger files than this many bytes aren't compared with others: real models, and files with holes."""


def pytest_configure(config: pytest.Config) -> None:
    """Try the same examples in each run, unless a seed asks for others. A busy machine may take long for one."""
    seeded = config.getoption("--hypothesis-seed", None) is not None
    settings.register_profile("tests", derandomize=not seeded, deadline=None)
    settings.load_profile("tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that -m leaves out aren't even read unless they are named: they have thousands of cases."""
    name = collection_path.name
    left_out = name in BY_FOLDER and f"not {name}" in config.getoption("markexpr")
    return (left_out and not any(name in arg for arg in config.args)) or None


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (folder := item.path.parent.name) in BY_FOLDER:
            item.add_marker(folder)


class FreshCaches:
    """Caches that begin with what is known. One that a test has left as it was serves the next one, too."""

    def __init__(self, folder: Path, known: Path) -> None:
        self._folder, self._known, self._made = folder, known, 0
        self._cache, self._contents = folder, None

    def take(self) -> Path:
        if self._contents is None or _contents(self._cache) != self._contents:
            self._made += 1
            self._cache = self._folder / str(self._made)
            shutil.copytree(self._known / "costs", self._cache / "specdec" / "costs")
            for part in ("kernels", "trials"):
                (self._cache / "specdec" / part).symlink_to(self._known / part)
            self._contents = _contents(self._cache)
        return self._cache


def _contents(folder: Path) -> list[tuple[object, ...]]:
    """What tells whether anything was written below a folder."""
    paths = [folder]
    for top, folders, files in os.walk(folder):
        paths += [Path(top, name) for name in sorted(folders + files)]
    found = [(path, path.lstat()) for path in paths if os.path.lexists(path)]
    return [(path, stat.st_mode, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found]


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshCaches]:
    """Keep the user's settings out of this process and those it starts. Yields the caches of its tests."""
    kept = ("PYTHONPATH", "SPECDEC_REPACK")
    gone = [name for name in os.environ if name.startswith(("SPECDEC_", "PYTHON")) and name not in kept]
    gone += ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "TTY_COMPATIBLE"]
    # One thread: the bundled pair gains little from two, and spinning threads suffer where cores are shared.
    chosen = {"SPECDEC_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # Most tests of commands are about drafts of a model; those of `auto` unset this.
    chosen["SPECDEC_DRAFTER"] = "model"
    with pytest.MonkeyPatch.context() as environment:
        for name in gone:
            environment.delenv(name, raising=False)
        for name, value in chosen.items():
            environment.setenv(name, value)
        folder = tmp_path_factory.mktemp("session")
        known = run_once(tmp_path_factory.getbasetemp())
        own_folders(environment, folder, FreshCaches(folder / "cache", known).take())
        environment.setattr("specdec_cli.weights.model_loading.begin_load", by_contents())
        yield FreshCaches(folder / "caches", known)


def run_once(base: Path) -> Path:
    """The cache after a run of the bundled pair, which is made once for all processes of a test run.

    It holds which kernels work, which files llama.cpp survives, what passes cost here, and which agree bit for bit.
    """
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "known"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "specdec").exists():
            own = os.environ | {"XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
            for more in ([], ["--bitwise", "-c", "1024"]):
                run = [sys.executable, "-m", "specdec_cli", "run", "def f(", "-n", "4", *more]
                subprocess.run(run, env=own, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            for part in ("kernels", "trials", "costs"):
                (folder / "specdec" / part).mkdir(parents=True, exist_ok=True)
    return folder / "specdec"


def by_contents() -> Callable[..., object]:
    """`begin_load`, but contents that went well in this process are not tried again, wherever they are written."""
    from specdec_cli.gguf.reader import part_names
    from specdec_cli.llama import kernels
    from specdec_cli.llama.trial_process import Child, begin_load

    last: dict[tuple[object, ...], Child] = {}

    def begin(path: Path, n_bytes: int, adapters: Sequence[Path] = (), head: Path | None = None) -> Child:
        if n_bytes > MAX_READ or not path.is_file():
            return begin_load(path, n_bytes, adapters, head)
        files = [*map(path.with_name, part_names(path.name)), *adapters, *([head] if head else [])]
        tried = kernels.build(), head is None, *(sha256(file.read_bytes()).digest() for file in files)
        if tried not in last or last[tried]._process.poll() != 0:
            last[tried] = begin_load(path, n_bytes, adapters, head)
        return last[tried]

    return begin


def own_folders(environment: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    environment.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    environment.setenv("XDG_DATA_HOME", str(folder / "data"))
    environment.setenv("XDG_CACHE_HOME", str(cache))
    environment.setenv("HF_HOME", str(folder / "hf"))
    environment.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hf" / "hub"))


@pytest.fixture(scope="session")
def unused_paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths where nothing is. pytest's own folders take longer the more of them there are."""
    base = tmp_path_factory.mktemp("each")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, unused_paths: Iterator[Path], caches: FreshCaches) -> Path:
    """Each test has settings and data of its own, and a cache that no other test has written to."""
    folder = next(unused_paths)
    own_folders(monkeypatch, folder, caches.take())
    return folder


@pytest.fixture
def tmp_path(clean_environment: Path) -> Path:
    """An empty folder; settings and data come into it, too."""
    clean_environment.mkdir(exist_ok=True)
    return clean_environment


@pytest.fixture
def nothing_known(clean_environment: Path) -> None:
    """For tests of what is found out about models: nothing is yet, but for the kernels that work."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "specdec"
    (cache / "trials").unlink()
    shutil.rmtree(cache / "costs")


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the bundled target that changes what it writes."""
    import loras
    from driver import TARGET

    return loras.write(tmp_path_factory.mktemp("lora") / "style.gguf", TARGET, strength=0.7)


@pytest.fixture(scope="session")
def of_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the bundled draft."""
    import loras
    from driver import DRAFT

    return loras.write(tmp_path_factory.mktemp("lora") / "draft-style.gguf", DRAFT, strength=0.7)


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that fails, fails the test."""
    monkeypatch.setattr("specdec_cli.decoding.speculation.Speculation._guarded", lambda self, action, *_: action())


@pytest.fixture
def own_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of trials: each file has its own."""
    from specdec_cli.llama.trial_process import begin_load

    monkeypatch.setattr("specdec_cli.weights.model_loading.begin_load", begin_load)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes that a test starts."""
    begun, start = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **rest: begun.append(start(*args, **rest)) or begun[-1])
    return begun


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compare with a text in display/snapshots."""
    from driver import assert_recorded

    return lambda name, text: assert_recorded(Path(__file__).parent / "display" / "snapshots" / name, text)


@pytest.fixture
def hub():
    """A Hugging Face Hub on loopback with the bundled pair; its contents are on another host, as the real one's are."""
    from hub_pairs import publish
    from hub_server import HubServer

    with HubServer() as hub:
        yield publish(hub)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A tab in a browser."""
    from devtools import Tab

    tab = Tab(tmp_path_factory.mktemp("browser"))
    yield tab
    tab.close()


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, hub, tmp_path: Path) -> list[float]:
    """For pulls in this process. Returns the waits that were asked for, none of which is waited."""
    from hub_pairs import here

    return here(monkeypatch, hub, tmp_path)
