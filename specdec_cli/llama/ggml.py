"""Functions of ggml that the bindings don't declare, looked up in its libraries on the first call."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama.bindings import FOLDER, lib

_P, _I64, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_SIZE_POINTER = ctypes.POINTER(ctypes.c_size_t)


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


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
    "ggml_backend_dev_supports_op": ([_P] * 2, ctypes.c_bool),
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
}
"""Argument types and result type. A backend's own functions aren't listed: it may be loaded at run time, so
`cpu_function` looks them up in its registry."""
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
    """A function of ggml; None if this build exports none of that name."""
    function = next((found for each in _libraries() if (found := getattr(each, name, None)) is not None), None)
    if function is not None:
        function.argtypes, function.restype = _FUNCTIONS[name]
    return function


def exports(name: str) -> bool:
    """Whether this build has a function."""
    return _found(name) is not None


def call(name: str, *arguments: Any) -> Any:
    """Call a function of ggml. Raises SpecdecError if this build does not export it."""
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
