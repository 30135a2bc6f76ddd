"""Passes over Q4_K and Q6_K weights, which specdec multiplies in its own way on x86 (k_quants.h)."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec_cli.llama import library, trial_child
from specdec_cli.llama.bindings import lib

F32, Q4_K, Q6_K = 0, 12, 14
WIDTHS = (*range(1, 20), 63)
"""Those that agree. From 64 tokens on, attention is computed in another way."""
WIDTH, HIDDEN, VOCABULARY = 512, 768, 512
"""Two or three blocks of weights for each column."""


def write(path: Path, kind: int, experts: int) -> Path:
    """A model of one layer with random weights of this type; experts: how many its feed-forward network has, if any."""
    random, base = np.random.default_rng(0), trial_child._ggml(lib)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("none")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_vocab_size(VOCABULARY)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH)}
    shapes |= {f"blk.0.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
    forward = {"gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        shapes |= {f"blk.0.ffn_{part}_exps": (experts, *shape) for part, shape in forward.items()}
    else:
        shapes |= {f"blk.0.ffn_{part}": shape for part, shape in forward.items()}
    for name, shape in shapes.items():
        weights = (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
        raw = trial_child._quantized(np, base, weights.reshape(-1, shape[-1]), kind)
        row = base.ggml_row_size(kind, shape[-1])
        writer.add_tensor(
            f"{name}.weight",
            np.frombuffer(raw, np.uint8, row * weights.size // shape[-1]).reshape(*shape[:-1], row),
            raw_dtype=gguf.GGMLQuantizationType(kind),
        )
    if experts:
        writer.add_tensor("blk.0.ffn_gate_inp.weight", random.standard_normal((experts, WIDTH)).astype(np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("kind", [Q4_K, Q6_K])
def test_the_width_of_a_pass_changes_no_bit_and_the_rows_are_right(tmp_path, monkeypatch, kind, experts, threads):
    monkeypatch.setattr(trial_child, "_VOCABULARY", VOCABULARY)
    path = write(tmp_path / "model.gguf", kind, experts)
    text = np.random.default_rng(1).integers(0, VOCABULARY, 100).tolist()
    found = trial_child._rows(lib, np, path, text, threads, (*WIDTHS, len(text)), True)
    plain = trial_child._rows(lib, np, path, text, threads, (1,), False)[1]
    for width, rows in found.items():
        distance = float(np.sqrt(np.mean((rows - plain[: len(rows)]) ** 2)))
        assert distance < 0.05 * plain.std(), f"{width} rows"  # the rounding of activations to eight bits
        # What chooses experts rounds differently from four rows on.
        if library.has_own_kernels() and not experts and width in WIDTHS:
            assert np.array_equal(rows, found[1][: len(rows)]), f"{width} rows"
