"""The models' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from .models import QWEN, QWEN_SMALL, SMOL, RealModel


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
