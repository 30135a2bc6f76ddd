"""Functions of llama.cpp without a stable API: hidden rows of a model's layers, for heads that draft with them.

Their names come from a C++ header that changes (src/llama-ext.h of the bundled version), so each is looked up, and
`missing` lists those that aren't found. The bindings declare some of them in `llama_cpp_ext`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama.bindings import lib

_CONTEXT, _MODEL = ctypes.c_void_p, ctypes.c_void_p
_ADDRESS = ctypes.c_void_p
# name: its parameters as the Itanium C++ ABI mangles them, argument types, result type
_FUNCTIONS: dict[str, tuple[str, list[Any], Any]] = {
    "llama_set_embeddings_nextn": ("P13llama_contextbb", [_CONTEXT, ctypes.c_bool, ctypes.c_bool], None),
    "llama_get_embeddings_nextn": ("P13llama_context", [_CONTEXT], _ADDRESS),
    "llama_set_nextn_layer_offset": ("P13llama_contexti", [_CONTEXT, ctypes.c_int32], None),
    "llama_set_embeddings_layer_inp": ("P13llama_contextjb", [_CONTEXT, ctypes.c_uint32, ctypes.c_bool], None),
    "llama_get_embeddings_layer_inp": ("P13llama_contextj", [_CONTEXT, ctypes.c_uint32], _ADDRESS),
    "llama_model_target_layer_ids": ("PK11llama_model", [_MODEL], ctypes.POINTER(ctypes.c_int32)),
    "llama_model_target_layer_ids_n": ("PK11llama_model", [_MODEL], ctypes.c_uint32),
}


@cache
def _function(name: str) -> Any:
    """A function of llama.cpp, or None."""
    parameters, arguments, result = _FUNCTIONS[name]
    for symbol in (name, f"_Z{len(name)}{name}{parameters}"):
        if (function := getattr(lib._lib, symbol, None)) is not None:
            function.argtypes, function.restype = arguments, result
            return function
    return None


def missing() -> list[str]:
    """What this build of llama.cpp lacks for drafting from hidden rows; empty if nothing."""
    lacking = [name for name in _FUNCTIONS if _function(name) is None]
    fields = {field[0] for field in lib.llama_context_params._fields_} | {
        field[0] for field in lib.llama_model_params._fields_
    }
    return lacking + [name for name in ("ctx_type", "ctx_other", "load_mtp") if name not in fields]


def require() -> None:
    """Raise SpecdecError if this build of llama.cpp gives no hidden rows."""
    if lacking := missing():
        raise SpecdecError(
            f"this build of llama.cpp gives no hidden rows: it lacks {', '.join(lacking)}",
            "Install the version of llama-cpp-python that specdec requires, or use another drafter.",
        )


def give_hidden_rows(context: Any, masked: bool) -> None:
    """Make a context output its last layer's rows. masked: only for tokens whose logits are requested."""
    _function("llama_set_embeddings_nextn")(context, True, masked)


def hidden_rows(context: Any, count: int, width: int) -> NDArray[np.float32]:
    """(count, width): the last layer's rows in the last pass; valid until the next."""
    address = _function("llama_get_embeddings_nextn")(context)
    if not address:
        raise SpecdecError("llama.cpp gives no hidden rows for this model", "Use another drafter.")
    return rows_at(address, count, width)


def rows_at(address: int, count: int, width: int) -> NDArray[np.float32]:
    """A view of rows in memory. numpy.ctypeslib.as_array takes ten times as long, and drafting reads rows often."""
    buffer: Any = (ctypes.c_float * (count * width)).from_address(address)
    return np.frombuffer(buffer, np.float32).reshape(count, width)


def give_layer(context: Any, layer: int) -> None:
    """Make a context output the input of a layer, counted from 0. The layer after the last means the last's output."""
    _function("llama_set_embeddings_layer_inp")(context, layer, True)


def layer_rows(context: Any, layer: int, count: int, width: int) -> NDArray[np.float32]:
    """(count, width): a layer's input in the last pass; valid until the next."""
    return rows_at(_function("llama_get_embeddings_layer_inp")(context, layer), count, width)


def choose_head(context: Any, number: int) -> None:
    """Choose which of several next-token layers the next passes use."""
    _function("llama_set_nextn_layer_offset")(context, number)


def target_layers(model: Any) -> list[int]:
    """The layers of the target whose rows a head's model reads."""
    count = _function("llama_model_target_layer_ids_n")(model)
    return list(_function("llama_model_target_layer_ids")(model)[:count])
