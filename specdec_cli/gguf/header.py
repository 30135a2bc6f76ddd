"""The contents of a GGUF header."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from specdec_cli.decoding.errors import SpecdecError

# ggml type: (name, values per block, bytes per block), from ggml.h and ggml-common.h
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

NOT_COMPUTED_WITH = {"Q8_1", "Q8_K", "I8", "I16", "I64", "F64"}
"""Types that llama.cpp reads but can't compute with. I32 isn't one, because tables of token ids have it."""

# general.file_type, from llama.h
QUANTISATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

Order = Literal["little", "big"]


@dataclass(frozen=True)
class StringArray:
    """An array of strings as in the file. In the same byte order, equal bytes mean equal strings."""

    raw: bytes
    count: int
    order: Order = "little"

    @cached_property
    def values(self) -> list[bytes]:
        """The strings as bytes, because a vocabulary may contain invalid UTF-8."""
        strings, start = [], 8
        for _ in range(self.count):
            end = start + int.from_bytes(self.raw[start - 8 : start], self.order)
            strings.append(self.raw[start:end])
            start = end + 8
        return strings


@dataclass(frozen=True, slots=True)
class Tensor:
    """A row of the tensor table. offset: from the start of the data. size: bytes; None for unknown types."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int | None

    @property
    def n_params(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A model's header. Arrays of numbers are numpy arrays, arrays of strings are StringArray.

    For a split model: the metadata of the first file and the tensors of all files. size: bytes of all files.
    """

    name: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    size: int = 0
    order: Order = "little"

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        return name if isinstance(name, str) else "unknown"

    def scalar(self, name: str) -> Any:
        """A number or a text of the metadata; None if it is missing or an array, which can't be compared with one."""
        value = self.metadata.get(name)
        return value if isinstance(value, int | float | str) else None

    def setting(self, key: str) -> Any:
        """A number or a text of the architecture, such as `block_count`; None if it is missing or an array."""
        return self.scalar(f"{self.architecture}.{key}")

    def count(self, key: str) -> int:
        """A value of the architecture that is a positive integer; 0 if it is missing or anything else."""
        value = self.setting(key)
        return value if type(value) is int and value > 0 else 0

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def n_params(self) -> int:
        return sum(tensor.n_params for tensor in self.tensors)

    @property
    def n_active_params(self) -> int:
        """Parameters used for one token: only the active experts, and no lookup tables."""
        looked_up = sum(tensor.n_params for tensor in self.tensors if tensor.name == "per_layer_token_embd.weight")
        experts = sum(tensor.n_params for tensor in self.tensors if "_exps." in tensor.name)
        total, used = self.count("expert_count"), self.count("expert_used_count")
        if not 0 < used <= total:
            return self.n_params - looked_up
        return self.n_params - looked_up - experts + experts * used // total

    @property
    def quantisation(self) -> str:
        """The quantisation that the file states, otherwise the type of most of its bytes."""
        kind = self.metadata.get("general.file_type")
        if type(kind) is int and kind in QUANTISATIONS:
            return QUANTISATIONS[kind]
        sizes = Counter[str]()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.size or 0
        return sizes.most_common(1)[0][0] if sizes else "unknown"


def shown(value: object) -> str:
    """A metadata value, of any type and length, shortened for a message."""
    text = f"an array of {value.count:,} strings" if isinstance(value, StringArray) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def damaged(name: str, why: str) -> SpecdecError:
    return SpecdecError(f"{name} is damaged: {why}", "Download the file again.")
