"""Make the helpers beside this file importable from every folder of tests, and keep the user's settings out."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DEMO = Path(__file__).parent.parent / "profiles" / "demo"


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # One thread: the bundled pair gains nothing from two, and spinning threads suffer where cores are shared.
    monkeypatch.setenv("SPECDEC_THREADS", "1")
    for name in ("NO_COLOR", "FORCE_COLOR", "SPECDEC_DEBUG"):
        monkeypatch.delenv(name, raising=False)


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
