"""Make the helpers beside this file importable from every folder of tests, and keep the user's settings out."""

import sys
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
