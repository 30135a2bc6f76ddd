"""Rejects model files by their headers; for those on the Hub, before the download.

llama.cpp crashes on many damaged files. The trial of a new file in a child process (weights/model_loading.py) finds
most of them. This module finds what a trial can't, or gives a better reason.
"""

from __future__ import annotations

import re
import sys

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import NOT_COMPUTED_WITH, Header, damaged, shown
from specdec_cli.gguf.vocabulary import NO_TOKENIZER, Vocabulary, is_reduced

MAX_LAYERS = 512
_ENCODERS = re.compile(".*bert|t5|gemma-embedding|clip|wavtokenizer")


def require_runnable(header: Header) -> None:
    """Raise SpecdecError on values and kinds of model that llama.cpp accepts, but then crashes or answers nonsense."""
    if header.order != sys.byteorder:
        raise SpecdecError(
            f"{header.name} was made for {header.order}-endian machines; this one is {sys.byteorder}-endian",
            "Download a file for this machine, or convert it with gguf-convert-endian of the gguf package.",
        )
    if header.setting("attention.causal") is False or _ENCODERS.match(header.architecture):
        what = f"{header.name} is not a causal language model and does not generate text ({shown(header.architecture)})"
        raise SpecdecError(what, "Choose an instruct or a base model.")
    if header.architecture == "dflash":
        what = f"{header.name} is a DFlash draft model, which specdec cannot use"
        raise SpecdecError(what, "Use a draft model, or an EAGLE-3 head or Medusa heads for the target.")
    for key, value in header.metadata.items():
        if key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < float("inf")):
            raise damaged(header.name, f"{shown(key)} is {shown(value)}")
    layers = header.metadata.get(f"{header.architecture}.block_count")
    if layers is not None and not (type(layers) is int and 1 <= layers <= MAX_LAYERS):
        raise damaged(header.name, f"it claims {shown(layers)} layers")
    for tensor in header.tensors:
        if tensor.name == "d2t":  # a table of token ids
            continue
        if tensor.type in NOT_COMPUTED_WITH or (tensor.type != "F32" and "norm" in tensor.name):
            what = f"llama.cpp cannot compute with {shown(tensor.name)} of {header.name}: its type is {tensor.type}"
            raise SpecdecError(what, "Download another file of this model, or convert it with llama.cpp's tools.")


def require_tokenizer(header: Header) -> None:
    """Raise SpecdecError on a model without a tokenizer: llama.cpp crashes when it tokenizes a text."""
    if is_reduced(header):
        problem = f"{header.name} is a draft with a part of its target's tokens and cannot run alone"
        raise SpecdecError(problem, "Name its target (-m), and this file as its draft (-md).")
    if header.scalar("tokenizer.ggml.model") in NO_TOKENIZER:
        raise SpecdecError(f"{header.name} has no tokenizer", "Choose a complete model file.")


def require_sound_vocabulary(header: Header) -> None:
    """Raise SpecdecError on a vocabulary that can't represent every byte, which a trial may not find. Takes 0.1 s for
    150k tokens, so call it only for new files. A reduced draft is compared with its target instead.
    """
    if is_reduced(header):
        return
    require_tokenizer(header)
    if header.scalar("tokenizer.ggml.model") == "llama":
        texts = set(Vocabulary(header).tokens.values)
        for byte in range(256):
            if not {b"<0x%02X>" % byte, bytes([byte])} & texts:
                raise damaged(header.name, f"its vocabulary has no token for the byte 0x{byte:02X}")
