"""What headers alone say of a pair: its sizes, its memory, where that fits, and whether it is likely to pay."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.gguf.header import Header, Tensor
from specdec_cli.gguf.memory import footprint
from specdec_cli.gguf.tokenizer_comparison import Comparison
from specdec_cli.pairs.model_sources import ModelSource
from specdec_cli.pairs.pair_check import FreeMemory, compare_sources

GB = 1000**3
FREE = FreeMemory(0, 64 * GB)
FITS = Comparison("identical", 1, 0, ())


def model(params=1000, name="m.gguf", experts=0, **settings):
    """A header of so many parameters, `experts` of them in experts."""
    known = {"block_count": 2, "context_length": 8192, "attention.head_count": 4, "embedding_length": 64, **settings}
    tensors = [Tensor("blk.0.ffn_up.weight", (params - experts,), "Q8_0", 0, params)]
    if experts:
        tensors.append(Tensor("blk.0.ffn_up_exps.weight", (experts,), "Q8_0", params, experts))
    metadata = {"general.architecture": "llama", "general.file_type": 7}
    metadata |= {f"llama.{key}": value for key, value in known.items()}
    return Header(name, 3, metadata, tuple(tensors), 0, params * 10)


def source(header):
    return ModelSource(header.name, header, None, None)


def compare(target, draft, n_ctx=4096, free=FREE):
    return compare_sources(source(target), source(draft), FITS, n_ctx, free)


def advice(target, draft, free=FREE):
    return "\n".join(compare(target, draft, free=free).advice)


def test_what_headers_say():
    incompatible = Comparison("incompatible", 1, 1, ())
    assert compare_sources(source(model()), source(model(50)), incompatible, 4096, FREE).advice == ()
    found = compare(model(1000), model(50, "d.gguf", context_length=2048), 1024, FREE)
    assert found.ratio == 0.05
    target, draft = found.target, found.draft
    assert (target.quantisation, target.n_params, target.n_ctx_train, draft.n_ctx_train) == ("Q8_0", 1000, 8192, 2048)
    # f16 keys and values of two layers, each as wide as the model
    assert target.cache == draft.cache == 1024 * 2 * (64 + 64) * 2
    assert found.memory.needed == target.memory + draft.memory
    assert target.memory == footprint(model(1000), 1024).total > target.size + target.cache
    assert target.repacked == 0 == compare(model(1000), model(50), 1024, FREE).draft.repacked
    # What a machine copies counts too; on a GPU the buffers are an allowance.
    free = FreeMemory(0, 64 * GB, frozenset({"Q8_0"}))
    wide = replace(model(), tensors=(Tensor("blk.0.ffn_up.weight", (64, 64), "Q8_0", 0, 64 * 64),))
    assert compare(wide, model(50), 1024, free).target.repacked == 64 * 64
    assert compare(wide, model(50), 1024, FreeMemory(GB, GB)).target.buffers == 256 << 20


def test_of_a_mixture_of_experts_the_experts_in_use_count():
    target = model(10_000, experts=8000, expert_count=8, expert_used_count=1)
    found = compare(target, model(300))
    assert (found.target.n_params, found.target.n_active_params) == (10_000, 3000)
    assert found.ratio == 0.1
    assert "mixture of experts and uses 1 of 8" in advice(target, model(300))
    assert "mixture" not in advice(model(), model(10))
    draft = model(1000, experts=800, expert_count=8, expert_used_count=1)
    assert compare(model(3000), draft).ratio == 0.1
    assert "mixture" not in advice(model(3000), draft)  # only the target's verification reads more


def test_of_heads_the_size_says_nothing():
    heads = replace(model(500), metadata={"general.architecture": "medusa"})
    assert advice(model(1000), heads) == "the draft is a file of heads: --drafter ngram+medusa drafts with them"


@pytest.mark.parametrize(
    ("gpu", "main", "fits_in"),
    [(0, 10, "main"), (0, 9, "none"), (0, None, "unknown"), (10, 0, "gpu"), (10, None, "gpu"), (9, 1, "both"),
     (9, 0, "none"), (9, 10, "both"), (9, None, "unknown")],
)  # fmt: skip
def test_where_a_pair_fits(gpu, main, fits_in):
    assert FreeMemory(gpu, main).fits_in(10) == fits_in


def test_what_does_not_fit_is_told_with_what_to_do():
    big = replace(model(), size=100 * GB)
    said = advice(big, model(10), free=FreeMemory(0, 16 * GB))
    assert "101" in said or "100" in said
    assert "16.0 GB of main memory free" in said and "smaller quantisation" in said and "GPU" not in said
    said = advice(big, model(10), free=FreeMemory(24 * GB, 200 * GB))
    assert "24.0 GB" in said and "-ngl" in said
    said = advice(big, model(10), free=FreeMemory(24 * GB, 16 * GB))
    assert "24.0 GB of GPU memory and 16.0 GB of main memory" in said
    for free in (FreeMemory(0, 200 * GB), FreeMemory(200 * GB, 0), FreeMemory(0, None)):
        assert "GB" not in advice(big, model(10), free=free)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-9, 9), max_size=3).map(np.array),
)
KEYS = (
    *("block_count", "context_length", "attention.head_count", "attention.head_count_kv", "embedding_length"),
    *("attention.key_length", "attention.value_length", "expert_count", "expert_used_count", "full_attention_interval"),
    *("ssm.state_size", "attention.sliding_window"),
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING), st.integers(1, 2**31), st.sampled_from([0, 1, 1000]))
def test_a_hostile_header_is_judged_all_the_same(settings, n_ctx, params):
    metadata = {f"llama.{key}": value for key, value in settings.items()} | {"general.architecture": "llama"}
    tensors = tuple(Tensor(name, (params,), "F32", 0, None) for name in ("a", "b_exps.x"))
    header = Header("m.gguf", 3, metadata, tensors, 0, 10)
    for pair in ((header, model()), (model(), header), (header, header)):
        found = compare(*pair, n_ctx, FREE)
        json.dumps(msgspec.to_builtins(found), allow_nan=False)
        assert found.memory.needed > 0 and found.ratio >= 0 and found.advice
