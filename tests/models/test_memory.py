from pathlib import Path

import numpy as np
import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import Header, read_header
from specdec_cli.models.memory import cache_bytes, require

DEMO = Path(__file__).parents[2] / "profiles" / "demo"
BASE = {"block_count": 10, "attention.head_count": 8, "attention.head_count_kv": 2, "embedding_length": 512}


def model(drop=(), **settings) -> Header:
    values = {**BASE, **{key.replace("__", "."): value for key, value in settings.items()}}
    metadata = {f"qwen3.{key}": value for key, value in values.items() if key not in drop}
    return Header("m.gguf", 3, {"general.architecture": "qwen3", **metadata}, (), 0)


@pytest.mark.parametrize(
    ("header", "per_token"),
    [
        (model(), 10 * 2 * (64 + 64) * 2),
        (model(drop=["attention.head_count_kv"]), 10 * 8 * (64 + 64) * 2),
        (model(attention__key_length=128, attention__value_length=96), 10 * 2 * (128 + 96) * 2),
        (model(attention__key_length=128), 10 * 2 * (128 + 64) * 2),
        # A hybrid: only the layers that attend keep anything.
        (model(attention__head_count_kv=np.array([2, 0, 0, 2], np.int32)), 4 * (64 + 64) * 2),
        (model(attention__head_count=np.array([8, 0, 4], np.int32)), 10 * 2 * (64 + 64) * 2),
        (model(drop=BASE), 0),
        (model(block_count="ten"), 0),
        (Header("x", 3, {}, (), 0), 0),
    ],
)
def test_bytes_of_a_cache(header, per_token):
    assert cache_bytes(header, 1) == per_token
    assert cache_bytes(header, 32768) == per_token * 32768
    assert type(cache_bytes(header, 7)) is int


def test_the_bundled_target():
    """6 layers of 5 heads, 320 wide: keys and values, 2 bytes each."""
    assert cache_bytes(read_header(DEMO / "target.gguf"), 1024) == 1024 * 6 * 320 * 2 * 2


def test_what_fits_is_allowed_to_the_byte():
    needed = cache_bytes(model(), 1000)
    require(model(), 1000, needed)
    with pytest.raises(SpecdecError) as caught:
        require(model(), 1000, needed - 1)
    assert "1,000 tokens" in str(caught.value) and "-c" in caught.value.hint
    assert caught.value.exit_code == 1


def test_the_sizes_are_named():
    with pytest.raises(SpecdecError, match=r"needs 5,120\.0 GB; 8\.0 GB are free"):
        require(model(), 10**9, 8 * 10**9)


def test_nothing_is_refused_where_nothing_is_known():
    require(model(), 10**9, None)
