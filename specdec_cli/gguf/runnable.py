"""What llama.cpp would not survive in a model file, as far as the header tells. It has no such checks of its own.

What is left takes a trial: engine/model_loading.py.
"""

from __future__ import annotations

import sys
from collections import Counter

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, damaged, shown
from specdec_cli.gguf.reduced_vocabulary import NO_TOKENIZER, is_reduced
from specdec_cli.gguf.vocab import Vocabulary, quoted

_MAX_LAYERS = 512
_MAX_EXPERTS = 512  # LLAMA_MAX_EXPERTS
_ENCODERS = ("bert", "nomic-bert", "jina-bert", "neo-bert", "modern-bert", "eurobert", "t5", "clip", "wavtokenizer")
NOT_COMPUTED_WITH = {"Q8_1", "Q8_K", "I8", "I16", "I64", "F64"}
"""Types that llama.cpp reads and has no kernels for. I32 is not among them: there are tables of token ids."""


def require_runnable(header: Header) -> None:
    """Refuse what llama.cpp does not: values and kinds of model on which it ends the process, or answers nonsense."""
    if header.order != sys.byteorder:
        raise SpecdecError(
            f"{header.name} was made for {header.order}-endian machines; this one is {sys.byteorder}-endian",
            "Download a file for this machine, or convert it with gguf-convert-endian of the gguf package.",
        )
    if header.setting("attention.causal") is False or header.architecture.startswith(_ENCODERS):
        what = f"{header.name} does not generate text: it is a {shown(header.architecture)} model"
        raise SpecdecError(what, "Choose a causal language model, such as an instruct or a base model.")
    if header.architecture == "dflash":
        what = f"{header.name} is a DFlash draft model, which specdec cannot use"
        raise SpecdecError(what, "Use a draft model, or an EAGLE-3 head or Medusa heads for the target.")
    for key, value in header.metadata.items():
        if key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < float("inf")):
            raise damaged(header.name, f"{shown(key)} is {shown(value)}")
    _require_layers(header)
    _require_experts(header)
    _require_tensors(header)


def _require_layers(header: Header) -> None:
    layers, heads = header.setting("block_count"), header.setting("nextn_predict_layers")
    if layers is not None and not (type(layers) is int and 1 <= layers <= _MAX_LAYERS):
        raise damaged(header.name, f"it claims {shown(layers)} layers")
    if type(layers) is int and type(heads) is int and heads > layers:
        raise damaged(header.name, f"of its {layers} layers {heads:,} are said to be prediction heads")


def _require_experts(header: Header) -> None:
    """Refuse numbers of experts that contradict each other. What is no number llama.cpp refuses itself."""
    names = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
    values = [header.setting(name) for name in names]
    count, used, groups, groups_used = (value if type(value) is int else 0 for value in values)
    if type(values[1]) is not int and values[1] is not None:
        used = 1  # one number for each layer
    said = f"it claims {count:,} experts, {used:,} of them in use, in {groups:,} groups"
    if count > _MAX_EXPERTS or used > count or (count > 0) != (used > 0) or (groups and not count):
        raise damaged(header.name, said)
    if groups > 1 and (count % groups or not 0 < groups_used < groups):
        raise damaged(header.name, f"{said}, {groups_used:,} of them in use")


def _require_tensors(header: Header) -> None:
    for tensor in header.tensors:
        if tensor.name == "d2t":  # a head's table of token ids
            continue
        if tensor.type in NOT_COMPUTED_WITH or (tensor.type != "F32" and "norm" in tensor.name):
            what = f"llama.cpp cannot compute with {shown(tensor.name)} of {header.name}: its type is {tensor.type}"
            raise SpecdecError(what, "Download another file of this model, or convert it with llama.cpp's own tools.")


def require_tokenizer(header: Header) -> None:
    """Refuse a model that cannot read a text: llama.cpp ends the process when asked to."""
    if is_reduced(header):
        problem = f"{header.name} is a draft with a part of its target's tokens, and no model of its own"
        raise SpecdecError(problem, "Name its target (-m), and this file as its draft (-md).")
    if header.metadata.get("tokenizer.ggml.model") in NO_TOKENIZER:
        raise SpecdecError(f"{header.name} has no tokenizer", "Choose a complete model file.")


def require_sound_vocabulary(header: Header) -> None:
    """Refuse a vocabulary that ends the process. A tenth of a second for 150k tokens: for files that are new. That of a
    draft with a part of its target's tokens is refused where it is compared with that.
    """
    if is_reduced(header):
        return
    require_tokenizer(header)
    vocabulary, model = Vocabulary(header), header.metadata.get("tokenizer.ggml.model")
    texts = vocabulary.tokens.values
    distinct = set(texts)
    if len(distinct) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        if twice:  # llama.cpp gives empty ones names of their own
            raise damaged(header.name, f"its vocabulary has the token {quoted(twice)} twice")
    if model == "llama":
        lacking = [byte for byte in range(256) if not {b"<0x%02X>" % byte, bytes([byte])} & distinct]
        if lacking:
            raise damaged(header.name, f"its vocabulary has no token for the byte 0x{lacking[0]:02X}")
    if model in ("t5", "gemma4") and vocabulary.adds("bos") and vocabulary.field("bos_token_id") is None:
        raise damaged(header.name, "texts begin with a BOS token, and it does not say which that is")
