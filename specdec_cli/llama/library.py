"""llama.cpp as a library: started once, its log kept off the screen, its devices listed."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as lib

from specdec_cli.llama import host

recent_errors: deque[str] = deque(maxlen=8)
"""The last lines that llama.cpp logged as errors: why a load failed."""

_GGML_LOG_LEVEL_ERROR = 4


# A global, since llama.cpp keeps a bare pointer to it.
@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user: object) -> None:
    """llama.cpp's log: to stderr when debugging, else only its errors are remembered."""
    if os.environ.get("SPECDEC_DEBUG"):
        sys.stderr.write(text.decode("utf-8", "replace"))
    elif level == _GGML_LOG_LEVEL_ERROR:
        recent_errors.append(text.decode("utf-8", "replace").strip())


@functools.cache
def start() -> None:
    """Initialise llama.cpp's backends, once in the life of the process."""
    lib.llama_log_set(_on_log, ctypes.c_void_p(0))
    lib.llama_backend_init()


def last_error() -> str:
    """The first error that llama.cpp logged since the last call, without its function names; may be empty."""
    lines = [line.split(": ", 1)[-1] for line in recent_errors if line]
    recent_errors.clear()
    return lines[0] if lines else ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp can compute on. Memory in bytes."""

    name: str
    description: str
    kind: str
    free: int
    total: int

    @property
    def is_gpu(self) -> bool:
        """Whether layers can be put there, by its name."""
        return "GPU" in self.kind


@functools.cache
def _ggml() -> ctypes.CDLL:
    start()
    folder = Path(lib.__file__).parent / "lib"
    names = [folder / name for name in ("libggml.so", "libggml.dylib", "ggml.dll")]
    ggml = ctypes.CDLL(str(next(filter(Path.exists, names), names[0])))
    for name, restype, argtypes in (
        ("ggml_backend_dev_count", ctypes.c_size_t, []),
        ("ggml_backend_dev_by_name", ctypes.c_void_p, [ctypes.c_char_p]),
        ("ggml_backend_dev_get", ctypes.c_void_p, [ctypes.c_size_t]),
        ("ggml_backend_dev_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_description", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_type", ctypes.c_int, [ctypes.c_void_p]),
        ("ggml_backend_dev_memory", None, [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]),
        ("ggml_backend_dev_init", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
        ("ggml_backend_reg_dev_count", ctypes.c_size_t, [ctypes.c_void_p]),
        ("ggml_backend_reg_dev_get", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
        ("ggml_set_abort_callback", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ggml_backend_rpc_add_server", ctypes.c_void_p, [ctypes.c_char_p]),
        ("ggml_backend_rpc_start_server", None, [*[ctypes.c_char_p] * 2, *[ctypes.c_size_t] * 2, ctypes.c_void_p]),
    ):
        if not name.startswith("ggml_backend_rpc") or hasattr(ggml, name):
            function = getattr(ggml, name)
            function.restype, function.argtypes = restype, argtypes
    return ggml


def device_handle(name: str) -> int | None:
    """llama.cpp's own device of that name, in upper or lower case; None if there is none."""
    handle: int | None = _ggml().ggml_backend_dev_by_name(name.encode())
    return handle


def devices() -> list[Device]:
    """Every device the build knows, CPU included."""
    ggml = _ggml()
    kinds = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator"}
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = []
    for i in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(i)
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name, description = ggml.ggml_backend_dev_name(device), ggml.ggml_backend_dev_description(device)
        kind = kinds.get(ggml.ggml_backend_dev_type(device), "other")
        result.append(Device(name.decode(), description.decode(), kind, free.value, total.value))
    return result


@functools.cache
def supports_gpu() -> bool:
    """Whether layers can be put on a GPU of this machine."""
    return any(device.is_gpu for device in devices())


def knows_rpc() -> bool:
    """Whether this build can compute on other machines."""
    return hasattr(_ggml(), "ggml_backend_rpc_add_server")


def rpc_devices(address: str) -> list[int]:
    """Connect to a server, HOST:PORT, for good; handles of its devices. Only for `RemoteCalls`."""
    ggml = _ggml()
    if not (server := ggml.ggml_backend_rpc_add_server(address.encode())):
        return []
    found = [ggml.ggml_backend_reg_dev_get(server, i) for i in range(ggml.ggml_backend_reg_dev_count(server))]
    for device in found:
        ggml.ggml_backend_dev_init(device, None)
    return found


def serve_rpc(address: str, threads: int, names: Sequence[str]) -> None:
    """Serve devices of this machine at an address, HOST:PORT, without end; it returns if that cannot be had."""
    handles = [device_handle(name) for name in names]
    devices = (ctypes.c_void_p * len(handles))(*handles)
    _ggml().ggml_backend_rpc_start_server(address.encode(), None, threads, len(handles), devices)


def on_abort(callback: object) -> None:
    """Let ggml call this, a C function that takes a text, before it ends the process."""
    _ggml().ggml_set_abort_callback(ctypes.cast(callback, ctypes.c_void_p))  # type: ignore[arg-type]


def build_flags() -> str:
    """llama.cpp's own line about the instruction sets and backends it was built with."""
    start()
    return str(lib.llama_print_system_info().decode())


def versions() -> dict[str, str]:
    """Versions of the bindings and of llama.cpp itself."""
    import llama_cpp

    return {"llama-cpp-python": llama_cpp.__version__, "llama.cpp": lib.llama_version().decode()}


def machine() -> str:
    """What the devices of this machine are called, for telling one machine from another."""
    return f"{', '.join(device.description for device in devices())}; {host.physical_cores()} cores"
