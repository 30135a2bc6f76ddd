"""Heads that draft by a target's hidden rows, as headers tell them."""

from __future__ import annotations

from specdec_cli.gguf.header import Header


def head_of(header: Header) -> str:
    """The drafter that a file's heads are for: mtp, eagle3, medusa, or none."""
    if header.architecture in ("eagle3", "medusa"):
        return header.architecture
    layers = header.setting("nextn_predict_layers")
    return "mtp" if type(layers) is int and layers > 0 and _next_token_tensors(header) else ""


def is_head_alone(header: Header) -> bool:
    """Whether there is no model beside the heads: they draft for another file."""
    return header.architecture in ("eagle3", "medusa") or not any(
        tensor.name.startswith("blk.0.") for tensor in header.tensors
    )


def _next_token_tensors(header: Header) -> bool:
    """Whether the layers that the header speaks of are in the file: some converters leave them out."""
    return any(".nextn.eh_proj" in tensor.name for tensor in header.tensors)
