"""Make the helpers beside this file importable from every folder of tests, and keep the user's settings out."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent))  # for training/, which is not part of the package

# Typer builds all commands anew for each command line that is run in this process; once is enough.
typer.testing._get_command = functools.cache(typer.testing._get_command)

pytest_plugins = ["engines"]

DEMO = Path(__file__).parent.parent / "profiles" / "demo"


REPACK = os.environ.get("SPECDEC_REPACK")
"""`make test-kernels` runs the tests once without repacked weights."""


@pytest.fixture(scope="session")
def kernel_verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests of a run keep which kernels work: a child process finds that out but once."""
    folder = tmp_path_factory.getbasetemp().parent / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel_verdicts: Path) -> None:
    """No settings but those of a test, for this process and for those it starts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    cache = tmp_path.with_name(f"{tmp_path.name}-cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "specdec").mkdir(parents=True)
    (cache / "specdec" / "kernels").symlink_to(kernel_verdicts)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith(("SPECDEC_", "PYTHON"))]:
        if name != "PYTHONPATH":
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if REPACK is not None:
        monkeypatch.setenv("SPECDEC_REPACK", REPACK)
    # One thread: the bundled pair gains little from two, and spinning threads suffer where cores are shared.
    monkeypatch.setenv("SPECDEC_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    # Most tests of commands are about drafts of a model; those of `auto` unset this.
    monkeypatch.setenv("SPECDEC_DRAFTER", "model")


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
