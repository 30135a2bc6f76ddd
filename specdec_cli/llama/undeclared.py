"""Functions of llama.cpp and ggml that the bindings don't declare, looked up in the libraries on the first call."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama.bindings import FOLDER, lib

_P, _I64, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_BOOL, _SIZE_POINTER = ctypes.c_bool, ctypes.POINTER(ctypes.c_size_t)


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", _BOOL))


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "ggml_init": ([InitParams], _P),
    "ggml_free": ([_P], None),
    "ggml_tensor_overhead": ([], _SIZE),
    "ggml_graph_overhead": ([], _SIZE),
    "ggml_new_tensor_1d": ([_P, _INT, _I64], _P),
    "ggml_new_tensor_2d": ([_P, _INT, _I64, _I64], _P),
    "ggml_mul_mat": ([_P] * 3, _P),
    "ggml_add": ([_P] * 3, _P),
    "ggml_silu": ([_P] * 2, _P),
    "ggml_new_graph": ([_P], _P),
    "ggml_build_forward_expand": ([_P] * 2, None),
    "ggml_graph_n_nodes": ([_P], _INT),
    "ggml_graph_node": ([_P, _INT], _P),
    "ggml_nbytes": ([_P], _SIZE),
    "ggml_set_abort_callback": ([_P], _P),
    "ggml_threadpool_params_init": ([_P, _INT], None),
    "ggml_backend_dev_count": ([], _SIZE),
    "ggml_backend_dev_get": ([_SIZE], _P),
    "ggml_backend_dev_by_name": ([_TEXT], _P),
    "ggml_backend_dev_by_type": ([_INT], _P),
    "ggml_backend_dev_name": ([_P], _TEXT),
    "ggml_backend_dev_description": ([_P], _TEXT),
    "ggml_backend_dev_type": ([_P], _INT),
    "ggml_backend_dev_memory": ([_P, _SIZE_POINTER, _SIZE_POINTER], None),
    "ggml_backend_dev_init": ([_P, _TEXT], _P),
    "ggml_backend_dev_supports_op": ([_P] * 2, _BOOL),
    "ggml_backend_dev_backend_reg": ([_P], _P),
    "ggml_backend_reg_dev_count": ([_P], _SIZE),
    "ggml_backend_reg_dev_get": ([_P, _SIZE], _P),
    "ggml_backend_reg_get_proc_address": ([_P, _TEXT], _P),
    "ggml_backend_alloc_ctx_tensors": ([_P] * 2, _P),
    "ggml_backend_buffer_free": ([_P], None),
    "ggml_backend_free": ([_P], None),
    "ggml_backend_tensor_set": ([_P, _P, _SIZE, _SIZE], None),
    "ggml_backend_tensor_get": ([_P, _P, _SIZE, _SIZE], None),
    "ggml_backend_graph_compute": ([_P] * 2, _INT),
    "ggml_backend_rpc_add_server": ([_TEXT], _P),
    "ggml_backend_rpc_start_server": ([_TEXT, _TEXT, _SIZE, _SIZE, _P], None),
    "llama_attach_threadpool": ([_P] * 3, None),
    "llama_detach_threadpool": ([_P], None),
    "llama_set_embeddings_nextn": ([_P, _BOOL, _BOOL], None),
    "llama_get_embeddings_nextn": ([_P], _P),
    "llama_set_nextn_layer_offset": ([_P, _INT], None),
    "llama_set_embeddings_layer_inp": ([_P, ctypes.c_uint, _BOOL], None),
    "llama_get_embeddings_layer_inp": ([_P, ctypes.c_uint], _P),
    "llama_model_target_layer_ids": ([_P], ctypes.POINTER(ctypes.c_int32)),
    "llama_model_target_layer_ids_n": ([_P], ctypes.c_uint),
}
"""Argument types and result type. A backend's own functions aren't listed: it may be loaded at run time, so
`cpu_function` looks them up in its registry."""
FOR_HEADS = {
    "llama_set_embeddings_nextn": "P13llama_contextbb",
    "llama_get_embeddings_nextn": "P13llama_context",
    "llama_set_nextn_layer_offset": "P13llama_contexti",
    "llama_set_embeddings_layer_inp": "P13llama_contextjb",
    "llama_get_embeddings_layer_inp": "P13llama_contextj",
    "llama_model_target_layer_ids": "PK11llama_model",
    "llama_model_target_layer_ids_n": "PK11llama_model",
}
"""Functions without a stable API, which heads need for hidden rows, from a C++ header that changes (src/llama-ext.h of
the bundled version): their parameters as the Itanium C++ ABI mangles them."""
_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The libraries to search. libllama's handle also finds symbols of the libraries that it links to. Those may exist
    twice, as libggml.so and libggml.so.0, and must not be loaded twice; only Windows needs their names.
    """
    paths = [FOLDER / f"{name}.dll" for name in ("ggml-base", "ggml")]
    return [lib._lib, *(ctypes.CDLL(str(path)) for path in paths if path.exists())]


@cache
def _found(name: str) -> Any:
    """A function; None if this build exports none of that name."""
    symbols = name, f"_Z{len(name)}{name}{FOR_HEADS.get(name, '')}"
    every = (getattr(library, symbol, None) for library in _libraries() for symbol in symbols)
    function = next((found for found in every if found is not None), None)
    if function is not None:
        function.argtypes, function.restype = _FUNCTIONS[name]
    return function


def exports(name: str) -> bool:
    """Whether this build has a function."""
    return _found(name) is not None


def call(name: str, *arguments: Any) -> Any:
    """Call a function. Raises SpecdecError if this build does not export it."""
    if (function := _found(name)) is None:
        raise SpecdecError(
            f"this build of llama.cpp doesn't export {name}",
            "Install the version of llama-cpp-python that specdec requires.",
        )
    return function(*arguments)


def cpu_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function that only the CPU backend has; None if it has none of that name."""
    registered = call("ggml_backend_dev_backend_reg", call("ggml_backend_dev_by_type", _CPU))
    address = call("ggml_backend_reg_get_proc_address", registered, name.encode())
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None


def missing_for_heads() -> list[str]:
    """What this build of llama.cpp lacks for drafting from hidden rows; empty if nothing."""
    structs = lib.llama_context_params, lib.llama_model_params
    fields = {field[0] for struct in structs for field in struct._fields_}
    lacking = [name for name in FOR_HEADS if not exports(name)]
    return lacking + [name for name in ("ctx_type", "ctx_other", "load_mtp") if name not in fields]


def require_heads() -> None:
    """Raise SpecdecError if this build of llama.cpp gives no hidden rows."""
    if lacking := missing_for_heads():
        raise SpecdecError(
            f"this build of llama.cpp gives no hidden rows: it lacks {', '.join(lacking)}",
            "Install the version of llama-cpp-python that specdec requires, or use another drafter.",
        )
