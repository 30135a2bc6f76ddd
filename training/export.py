"""Weights as a GGUF file that llama.cpp reads. Takes numpy arrays; knows nothing of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from specdec_cli.make_drafts.training.gguf_weights import add_shape, add_tensor, finish
from specdec_cli.make_drafts.training.shape import Shape
from training.tokenizer import PRE, Vocabulary

Kind = Literal["Q8_0", "F16", "F32"]


def write(
    path: Path,
    weights: Mapping[str, np.ndarray],
    shape: Shape,
    vocabulary: Vocabulary,
    name: str,
    description: str = "",
    kind: Kind = "Q8_0",
) -> Path:
    """Write a model. Norms stay float32, all matrices become `kind`.

    weights: by the names of model.Decoder, which are llama.cpp's: token_embd.weight, blk.0.attn_q.weight, ...; linear
    maps as (outputs, inputs). There is no output.weight: llama.cpp then takes token_embd for it.
    """
    if len(vocabulary.tokens) != shape.vocabulary:
        raise ValueError(f"the tokenizer has {len(vocabulary.tokens)} tokens, the model {shape.vocabulary}")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_description(description)
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "code", "python"])
    add_shape(writer, shape)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(list(vocabulary.tokens))
    normal = [gguf.TokenType.NORMAL] * (len(vocabulary.tokens) - 1)
    writer.add_token_types([gguf.TokenType.CONTROL, *normal])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(True)
    for tensor, values in weights.items():
        add_tensor(writer, tensor, values, kind)
    finish(writer)
    return path


def file_bytes(shape: Shape) -> int:
    """What the tensors of a Q8_0 file take: 34 bytes for 32 numbers; the norms are float32."""
    norms = (2 * shape.layers + 1) * shape.width
    return (shape.parameters - norms) // 32 * 34 + 4 * norms
