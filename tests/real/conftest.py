"""Every test in this folder is marked `real`, and gets the models' files by these fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from .models import QWEN, QWEN_SMALL, SMOL, RealModel


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def smol() -> Path:
    return _there(SMOL)


@pytest.fixture(scope="session")
def qwen_small() -> Path:
    return _there(QWEN_SMALL)


@pytest.fixture(scope="session")
def qwen() -> Path:
    return _there(QWEN)


def _there(model: RealModel) -> Path:
    if not model.path.is_file():
        pytest.fail(f"{model.path} is missing; `make test-real` fetches it where it can", pytrace=False)
    return model.path
