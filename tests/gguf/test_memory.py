from pathlib import Path

import numpy as np
import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, Tensor
from specdec_cli.gguf.memory import cache_bytes, footprint, require
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import library

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
        # A hybrid: only the layers that attend keep anything.
        (model(attention__head_count_kv=np.array([2, 0, 0, 2], np.int32)), 4 * (64 + 64) * 2),
        (model(attention__head_count=np.array([8, 0, 4], np.int32)), 10 * 2 * (64 + 64) * 2),
        (model(drop=BASE), 0),
        (model(block_count="ten"), 0),
        (Header("x", 3, {}, (), 0), 0),
        (read_header(DEMO / "target.gguf"), 6 * 320 * 2 * 2),  # 6 layers of 5 heads, 320 wide
    ],
)
def test_bytes_of_a_cache(header, per_token):
    assert cache_bytes(header, 1) == per_token
    assert cache_bytes(header, 32768) == per_token * 32768
    assert type(cache_bytes(header, 7)) is int


def test_what_fits_is_allowed_to_the_byte():
    needed = cache_bytes(model(), 1000)
    require(model(), 1000, needed)
    require(model(), 10**9, None)  # nothing is known
    with pytest.raises(SpecdecError, match="1,000 tokens") as caught:
        require(model(), 1000, needed - 1)
    assert "-c" in caught.value.hint and caught.value.exit_code == 1
    with pytest.raises(SpecdecError, match=r"needs 5,120\.0 GB; 8\.0 GB are free"):
        require(model(), 10**9, 8 * 10**9)


# --- the whole footprint ---

MIB = 1 << 20


@pytest.mark.parametrize(
    ("width", "inner", "n_ctx", "mib"),
    [(576, 1536, 1024, 14.5), (576, 1536, 4096, 17.5), (896, 4864, 1024, 36.5), (1536, 8960, 4096, 68.5)],
)
def test_buffers_are_those_that_llama_cpp_reports(width, inner, n_ctx, mib):
    """What llama.cpp logs as its compute buffer: of SmolLM2-135M, Qwen2.5 0.5B and 1.5B."""
    needs = footprint(model(embedding_length=width, feed_forward_length=inner), n_ctx)
    work = 512 * (inner * 9 // 8)  # which llama.cpp does not log
    assert needs.buffers - work == mib * MIB


def tensors(*names, type="Q4_K", shape=(256, 16)):
    return tuple(Tensor(name, shape, type, 0, 1000) for name in names)


@pytest.mark.parametrize(
    ("rows", "repacked"),
    [
        (tensors("blk.0.ffn_up.weight", "output.weight", "token_embd.weight"), 2000),
        (tensors("blk.0.ffn_up.weight", "token_embd.weight"), 2000),  # the table is the output matrix too
        (tensors("blk.0.ffn_up.weight", type="Q6_K"), 0),
        (tensors("blk.0.ffn_up.weight", shape=(256, 12)), 0),
        (tensors("blk.0.ffn_up_exps.weight", shape=(256, 16, 4)), 1000),
        (tensors("output_norm.weight", shape=(256,)), 0),
        (tensors("blk.0.attn_q.bias", "per_layer_token_embd.weight"), 0),
    ],
)
def test_which_weights_are_in_memory_twice(rows, repacked):
    header = Header("m.gguf", 3, {}, rows, 0, 5000)
    assert footprint(header, 0, {"Q4_K"}).repacked == repacked
    assert footprint(header, 0).repacked == 0 and footprint(header, 0).weights == 5000


@pytest.mark.parametrize(
    ("flags", "types"),
    [
        ("CPU : SSE3 = 1 | AVX2 = 1 | LLAMAFILE = 1 | REPACK = 1 | ", {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
        ("CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 1 | ", {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4", "Q2_K"}),
        ("CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 0 | ", set()),
        ("CPU : NEON = 1 | REPACK = 1 | ", {"IQ4_NL"}),
        ("", set()),
    ],
)
def test_which_types_a_machine_repacks(flags, types):
    assert library.repacked_by(flags) == types
