"""A llama file and a head as one GGUF file that llama.cpp runs with multi-token prediction.

The architecture is glm4moe, whose dense layers compute what llama's do, but for rotary positions: a number is paired
with the one half a head away, not with its neighbour, so the rows of queries and keys are put in that order. Its head
must be a mixture of experts. One expert, whose normed weight is 1, and one shared expert are together a feed-forward of
twice the width, so each of the two gets half of the head's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np

ARCHITECTURE = "glm4moe"
NEXTN = ("enorm", "hnorm", "eh_proj", "shared_head_norm")
ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
SIGMOID = gguf.ExpertGatingFuncType.SIGMOID


def write(path: Path, target: Path, head: Mapping[str, np.ndarray]) -> Path:
    """Write a model of the target's layers, as they are in its file, and a head in Q8_0.

    head: by the names of mtp_head.Head; linear maps as (outputs, inputs).
    """
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _copy_settings(reader, writer)
    layers, heads = (int(reader.fields[f"llama.{name}"].contents()) for name in ("block_count", "attention.head_count"))
    writer.add_block_count(layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_leading_dense_block_count(layers)
    for add in (writer.add_expert_count, writer.add_expert_used_count, writer.add_expert_shared_count):
        add(1)
    writer.add_expert_feed_forward_length(head["layer.ffn_up.weight"].shape[0] // 2)
    writer.add_expert_gating_func(SIGMOID)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.0)
    for tensor in reader.tensors:
        name = tensor.name.replace("ffn_norm", "post_attention_norm")
        writer.add_tensor(name, _halves(name, tensor.data, heads), raw_dtype=tensor.tensor_type)
    for name, values in _head(head):
        plain = values.ndim == 1 or "gate_inp" in name
        kind = gguf.GGMLQuantizationType.F32 if plain else gguf.GGMLQuantizationType.Q8_0
        data = gguf.quantize(_halves(name, values, heads), kind)
        writer.add_tensor(f"blk.{layers}.{name}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _copy_settings(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """All that the target's file says, but for what a head changes."""
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "llama.block_count"):
            inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            goal = name.replace("llama.", f"{ARCHITECTURE}.", 1) if name.startswith("llama.") else name
            writer.add_key_value(goal, field.contents(), field.types[0], inner)


def _halves(name: str, rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries and keys with the even ones of each head first; all others as they are."""
    if "attn_q." not in name and "attn_k." not in name:
        return rows
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _head(head: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The head's tensors under glm4moe's names, float32."""
    width = head["layer.attn_norm.weight"].shape[0]
    for name in NEXTN:
        yield f"nextn.{name}.weight", head[f"{name}.weight"]
    for name in ATTENTION:
        yield f"{name}.weight", head[f"layer.{name}.weight"]
    yield "post_attention_norm.weight", head["layer.ffn_norm.weight"]
    yield "ffn_gate_inp.weight", np.zeros((1, width), np.float32)
    yield "exp_probs_b.bias", np.zeros(1, np.float32)
    for part in ("gate", "up", "down"):
        routed, shared = np.split(head[f"layer.ffn_{part}.weight"], 2, 1 if part == "down" else 0)
        yield f"ffn_{part}_exps.weight", np.ascontiguousarray(routed[None])
        yield f"ffn_{part}_shexp.weight", np.ascontiguousarray(shared)
