"""What a header says of a model."""

import gguf
import numpy as np
import pytest

from specdec_cli.gguf.header import Header, Tensor


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


def test_of_a_mixture_of_experts_only_those_in_use_are_active():
    header = model(*MIXTURE, **{"moe.expert_count": 16, "moe.expert_used_count": 2})
    assert header.n_params == ALL
    assert header.n_active_params == ALL - ROUTED + ROUTED * 2 // 16
    assert model(*MIXTURE[:3]).n_active_params == 960


@pytest.mark.parametrize(
    ("count", "used"),
    [(16, 16), (0, 0), (16, 0), (0, 2), (2, 16), (-16, -2), (None, 2), (16, None), ("16", 2), (16, 2.0)],
)
def test_without_usable_counts_of_experts_all_are_active(count, used):
    counts = {"moe.expert_count": count, "moe.expert_used_count": used}
    header = model(*MIXTURE, **{key: value for key, value in counts.items() if value is not None})
    assert header.n_active_params == header.n_params == ALL


@pytest.mark.parametrize("kind", list(gguf.LlamaFileType), ids=lambda kind: kind.name)
def test_knows_the_name_of_every_file_type(kind):
    """By the package's enumeration, whose names are these with a prefix."""
    header = model(("w", (4,), "F64"), **{"general.file_type": int(kind)})
    name = kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
    assert header.quantisation == ("F64" if name == "GUESSED" else name.removesuffix("_MOE"))


@pytest.mark.parametrize("kind", [-1, 4, 99999, "Q8_0", 7.0, True, None])
def test_without_a_known_file_type_the_bytes_decide(kind):
    rows = [("a", (10,), "F32"), ("b", (10,), "F32"), ("c", (50,), "Q6_K")]
    assert model(*rows, **{"general.file_type": kind}).quantisation == "Q6_K"
    assert model(*rows[:2], **{"general.file_type": kind}).quantisation == "F32"
    assert model(**{"general.file_type": kind}).quantisation == "unknown"
    rows = (Tensor("a", (99,), "type 900", 0, None), Tensor("b", (1,), "F16", 0, 2))
    assert Header("m.gguf", 3, {}, rows, 0).quantisation == "F16", "a type of unknown size has no say"
