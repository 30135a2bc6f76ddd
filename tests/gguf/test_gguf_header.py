"""What a header says of a model: its parameters and type, what it takes in memory, and that llama.cpp can run it."""

import re
from contextlib import nullcontext

import gguf
import ggufs
import numpy as np
import pytest
import tiny
from driver import DEMO

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, Tensor
from specdec_cli.gguf.memory import cache_bytes, footprint, require
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary
from specdec_cli.llama import library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.shared_context import SharedContext


def model(*tensors: tuple[str, tuple[int, ...], str], **metadata) -> Header:
    rows = tuple(Tensor(name, shape, kind, 0, 2 * int(np.prod(shape))) for name, shape, kind in tensors)
    return Header("m.gguf", 3, {"general.architecture": "moe", **metadata}, rows, 0)


MIXTURE = (
    ("token_embd.weight", (8, 100), "F16"),
    ("blk.0.ffn_gate_inp.weight", (8, 16), "F32"),  # the router is always at work, and so is a shared expert
    ("blk.0.ffn_up_shexp.weight", (8, 4), "F16"),
    ("blk.0.ffn_up_exps.weight", (8, 4, 16), "Q8_0"),
    ("blk.0.ffn_down_exps.weight", (4, 8, 16), "Q8_0"),
    ("blk.0.ffn_up_exps.bias", (4, 16), "F32"),
)
ALL, ROUTED = 800 + 128 + 32 + 512 + 512 + 64, 512 + 512 + 64


@pytest.mark.parametrize(
    ("count", "used", "active"),
    [
        (16, 2, ALL - ROUTED + ROUTED * 2 // 16),
        *((count, used, ALL) for count, used in ((16, 16), (0, 0), (2, 16), (-16, -2), (16, None), ("16", 2))),
    ],
)
def test_of_a_mixture_of_experts_only_those_in_use_are_active_if_their_counts_make_sense(count, used, active):
    counts = {"moe.expert_count": count, "moe.expert_used_count": used}
    header = model(*MIXTURE, **{key: value for key, value in counts.items() if value is not None})
    assert (header.n_params, header.n_active_params) == (ALL, active)


@pytest.mark.parametrize("kind", list(gguf.LlamaFileType), ids=lambda kind: kind.name)
def test_knows_the_name_of_every_file_type(kind):
    """By the package's enumeration, whose names are these with a prefix."""
    header = model(("w", (4,), "F64"), **{"general.file_type": int(kind)})
    name = kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
    assert header.quantisation == ("F64" if name == "GUESSED" else name.removesuffix("_MOE"))


@pytest.mark.parametrize("kind", [99999, "Q8_0", True, None])
def test_without_a_known_file_type_the_bytes_decide(kind):
    rows = [("a", (10,), "F32"), ("b", (10,), "F32"), ("c", (50,), "Q6_K")]
    assert model(*rows, **{"general.file_type": kind}).quantisation == "Q6_K"
    assert model(*rows[:2], **{"general.file_type": kind}).quantisation == "F32"
    assert model(**{"general.file_type": kind}).quantisation == "unknown"
    rows = (Tensor("a", (99,), "type 900", 0, None), Tensor("b", (1,), "F16", 0, 2))
    assert Header("m.gguf", 3, {}, rows, 0).quantisation == "F16", "a type of unknown size has no say"


# --- memory ---

MIB = 1 << 20
BASE = {"block_count": 10, "attention.head_count": 8, "attention.head_count_kv": 2, "embedding_length": 512}


def attending(drop=(), **settings) -> Header:
    values = {**BASE, **{key.replace("__", "."): value for key, value in settings.items()}}
    metadata = {f"qwen3.{key}": value for key, value in values.items() if key not in drop}
    return Header("m.gguf", 3, {"general.architecture": "qwen3", **metadata}, (), 0)


@pytest.mark.parametrize(
    ("header", "per_token"),
    [
        (attending(), 10 * 2 * (64 + 64) * 2),
        (attending(drop=["attention.head_count_kv"]), 10 * 8 * (64 + 64) * 2),
        (attending(attention__key_length=128, attention__value_length=96), 10 * 2 * (128 + 96) * 2),
        # A hybrid: only the layers that attend keep anything.
        (attending(attention__head_count_kv=np.array([2, 0, 0, 2], np.int32)), 4 * (64 + 64) * 2),
        (attending(attention__head_count=np.array([8, 0, 4], np.int32)), 10 * 2 * (64 + 64) * 2),
        (attending(block_count="ten"), 0),
        (Header("x", 3, {}, (), 0), 0),
        (read_header(DEMO / "target.gguf"), 6 * 320 * 2 * 2),  # 6 layers of 5 heads, 320 wide
    ],
)
def test_bytes_of_a_cache(header, per_token):
    assert (cache_bytes(header, 1), cache_bytes(header, 32768)) == (per_token, per_token * 32768)


@pytest.mark.parametrize(
    "kind",
    [
        *tiny.ATTENTION,
        "olmo2-window",
        "gemma4",
        "deepseek2",
        "qwen35-mtp",
        "step35-mtp3",
        *tiny.RECURRENT,
        *tiny.HYBRID,
    ],
)
@pytest.mark.parametrize("rows", [9, 17], ids=["with snapshots", "too many for snapshots"])
def test_a_cache_takes_what_llama_cpp_says(kind, rows, load, monkeypatch, capsys):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    model = load(kind)
    SharedContext(model, 2048, rows, 1, Interrupt(), [Interrupt()] * 24).close()
    says = re.findall(r"(?:kv_cache|recurrent): size = +([\d.]+) MiB", capsys.readouterr().err)
    found = cache_bytes(read_header(model.path), 24 * 2048, rows, 24) / MIB
    assert found == pytest.approx(sum(map(float, says)), abs=0.011)


def test_what_fits_is_allowed_to_the_byte():
    needed = cache_bytes(attending(), 1000)
    require(attending(), 1000, needed)
    require(attending(), 10**9, None)  # nothing is known
    assert require(attending(), 1000, 0, offloaded=-1) == require(attending(), 1000, 0, offloaded=999) == 0
    assert [require(attending(), 1000, needed, offloaded=n) for n in (1, 5, 11)] == [needed, needed * 6 // 10, 0]
    with pytest.raises(SpecdecError, match="1,000 tokens") as caught:
        require(attending(), 1000, needed - 1)
    assert "-c" in caught.value.hint


# --- the whole footprint ---


@pytest.mark.parametrize(
    ("width", "inner", "n_ctx", "mib"),
    [(576, 1536, 1024, 14.5), (896, 4864, 1024, 36.5), (1536, 8960, 4096, 68.5)],
)
def test_buffers_are_those_that_llama_cpp_reports(width, inner, n_ctx, mib):
    """What llama.cpp logs as its compute buffer: of SmolLM2-135M, Qwen2.5 0.5B and 1.5B."""
    needs = footprint(attending(embedding_length=width, feed_forward_length=inner), n_ctx)
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
        ("CPU : AVX2 = 1 | REPACK = 1 | K_QUANTS = 1 | ", {"Q4_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"}),
        ("CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 0 | ", set()),
        ("CPU : NEON = 1 | REPACK = 1 | ", {"IQ4_NL"}),
    ],
)
def test_which_types_a_machine_repacks(flags, types):
    assert library.repacked_by(flags) == types


# --- one thing wrong at a time with a model that runs ---


@pytest.mark.parametrize(
    ("name", "kind", "refused"),
    [
        ("blk.0.attn_norm.weight", "F16", True),
        ("blk.0.attn_q.weight", "F64", True),
        ("token_embd.weight", "Q8_1", True),
        ("blk.1.ffn_up.weight", "Q8_0", False),
        ("blk.0.ffn_gate_tid2eid", "I32", False),
    ],
)
def test_types_of_tensors(name, kind, refused):
    header = model((name, (32,), kind), **{"general.architecture": "llama"})
    with pytest.raises(SpecdecError, match=f"cannot compute with {name}") if refused else nullcontext():
        require_runnable(header)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    ("kind", "tokens", "said"),
    [
        ("none", ["a"], "has no tokenizer"),
        ("llama", [*BYTES[:-1], "a"], "no token for the byte 0xFF"),
        ("llama", [*BYTES[:97], *BYTES[98:], "a"], None),
    ],
)
def test_vocabularies(kind, tokens, said):
    values = {"model": kind, "tokens": ggufs.string_array(tokens), "add_bos_token": True}
    with pytest.raises(SpecdecError, match=said) if said else nullcontext():
        require_sound_vocabulary(model(**{f"tokenizer.ggml.{name}": value for name, value in values.items()}))
