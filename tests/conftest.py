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


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those of a test, for this process and for those it starts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith(("SPECDEC_", "PYTHON"))]:
        if name != "PYTHONPATH":
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    # One thread: the bundled pair gains little from two, and spinning threads suffer where cores are shared.
    monkeypatch.setenv("SPECDEC_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


SNAPSHOTS = Path(__file__).parent / "display" / "snapshots"


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compare with a stored text. To accept a change, delete the file, run the test and look at the result."""

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / name
        if not path.exists():
            path.write_text(text, "utf-8")
            raise AssertionError(f"{path.name} was not there; it has been written: look at it and run again")
        assert text == path.read_text("utf-8")

    return compare
