"""Make the helpers beside this file importable from every folder of tests, and keep the user's settings out."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent))  # for training/, which is not part of the package

# Typer builds all commands anew for each command line that is run in this process; once is enough.
typer.testing._get_command = functools.cache(typer.testing._get_command)

pytest_plugins = ["engines"]


def pytest_configure(config: pytest.Config) -> None:
    """Try the same examples in each run, unless a seed asks for others."""
    if config.getoption("--hypothesis-seed", None) is None:
        settings.register_profile("same", derandomize=True)
        settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's settings out of this process and those it starts. Yields the cache of a first run."""
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
        found = run_once(tmp_path_factory.getbasetemp())
        own_folders(environment, folder, folder / "cache", found)
        yield found


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


def own_folders(environment: pytest.MonkeyPatch, folder: Path, cache: Path, known: Path) -> None:
    """Settings and data in one folder, and in another a cache that begins with what is known."""
    environment.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    environment.setenv("XDG_DATA_HOME", str(folder / "data"))
    environment.setenv("XDG_CACHE_HOME", str(cache))
    shutil.copytree(known / "costs", cache / "specdec" / "costs")
    for part in ("kernels", "trials"):
        (cache / "specdec" / part).symlink_to(known / part)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first_run: Path) -> None:
    """Each test has folders of its own; its cache lies beside `tmp_path`, which is empty."""
    own_folders(monkeypatch, tmp_path, tmp_path.with_name(f"{tmp_path.name}-cache"), first_run)


@pytest.fixture
def nothing_known(clean_environment: None) -> None:
    """For tests of what is found out about models: nothing is yet, but for the kernels that work."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "specdec"
    (cache / "trials").unlink()
    shutil.rmtree(cache / "costs")


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

    with HubServer(cdn_host="localhost") as hub:
        yield publish(hub)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, hub, tmp_path: Path) -> list[float]:
    """For pulls in this process. Returns the waits that were asked for, none of which is waited."""
    from hub_pairs import here

    return here(monkeypatch, hub, tmp_path)
