"""What each case of a test gets, and that nothing is left of it."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import SEED


@pytest.fixture
def chance(request: pytest.FixtureRequest, case: int) -> random.Random:
    """The same for a seed, a test and the number of a case."""
    return random.Random(f"{SEED}/{request.node.originalname}/{case}")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
