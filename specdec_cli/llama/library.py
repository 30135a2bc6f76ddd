"""llama.cpp as a library: starts it on import, keeps its log off the screen, and lists its devices and kernels."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections import deque

from specdec_cli.llama import host, kernels, undeclared
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.placement import Device

recent_errors: deque[str] = deque(maxlen=8)
"""The last lines that llama.cpp logged as errors; they say why a load failed."""

_GGML_LOG_LEVEL_ERROR = 4

# CPU features, and the tensor types that are repacked if all of them are available.
# From ggml_repack_get_optimal_repack_type in ggml's repack.cpp, and from its amx folder.
_RULES = (
    ({"REPACK", "AVX2"}, {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    ({"REPACK", "K_QUANTS"}, {"Q6_K"}),  # with k_quants.h
    ({"REPACK", "AVX512"}, {"Q2_K"}),
    ({"REPACK", "NEON"}, {"IQ4_NL"}),
    ({"REPACK", "NEON", "DOTPROD"}, {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "Q1_0"}),
    ({"REPACK", "NEON", "MATMUL_INT8"}, {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q1_0"}),
    ({"AMX_INT8", "AVX512_VNNI"}, {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}),
)


# A global, because llama.cpp keeps a bare pointer to it.
@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user: object) -> None:
    """Keeps llama.cpp's errors, and writes its log to stderr when debugging."""
    if os.environ.get("SPECDEC_DEBUG"):
        sys.stderr.write(text.decode("utf-8", "replace"))
    if level == _GGML_LOG_LEVEL_ERROR:
        recent_errors.append(text.decode("utf-8", "replace").strip())


lib.llama_log_set(_on_log, ctypes.c_void_p(0))
lib.llama_backend_init()


def last_error() -> str:
    """The first error that llama.cpp logged since the last call, without its function names; may be empty."""
    lines = [line.split(": ", 1)[-1] for line in recent_errors if line]
    recent_errors.clear()
    return lines[0] if lines else ""


def device_handle(name: str) -> int | None:
    """llama.cpp's device of that name, in any case; None if there is none."""
    handle: int | None = undeclared.call("ggml_backend_dev_by_name", name.encode())
    return handle


def devices() -> list[Device]:
    """Every device that the build supports here, including the CPU."""
    kinds = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator"}
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = []
    for i in range(undeclared.call("ggml_backend_dev_count")):
        device = undeclared.call("ggml_backend_dev_get", i)
        undeclared.call("ggml_backend_dev_memory", device, ctypes.byref(free), ctypes.byref(total))
        name, description = (
            undeclared.call(f"ggml_backend_dev_{what}", device).decode() for what in ("name", "description")
        )
        kind = kinds.get(undeclared.call("ggml_backend_dev_type", device), "other")
        result.append(Device(name, description, kind, free.value, total.value))
    return result


@functools.cache
def supports_gpu() -> bool:
    """Whether layers can be put on a GPU of this machine."""
    return any(device.is_gpu for device in devices())


def has_cuda() -> bool:
    """Whether this build computes on NVIDIA GPUs."""
    return "CUDA" in build_flags()


def has_own_kernels() -> bool:
    """Whether specdec's kernels (k_quants.h) compute Q4_K and Q6_K weights here: on a CPU, where AMX doesn't."""
    return "K_QUANTS" in build_flags() and "AMX_INT8" not in build_flags() and not supports_gpu()


def knows_rpc() -> bool:
    """Whether this build can use other machines."""
    return undeclared.exports("ggml_backend_rpc_add_server")


def build_flags() -> str:
    """llama.cpp's line about the instruction sets and backends that it was built with."""
    return str(lib.llama_print_system_info().decode())


def repacked_types() -> frozenset[str]:
    """The tensor types that a CPU run copies into another order for faster kernels. The file stays mapped, so such
    weights are in memory twice. Empty on a machine with a GPU, or if these kernels don't work.
    """
    if supports_gpu() or not kernels.verdict().extra_buffers:
        return frozenset()
    return repacked_by(build_flags())


def repacked_by(flags: str) -> frozenset[str]:
    """The same for llama.cpp's line about its build, such as "CPU : AVX2 = 1 | REPACK = 1 | "."""
    parts = [part.rpartition(":")[2].split("=") for part in flags.split("|")]
    features = {part[0].strip() for part in parts if len(part) == 2 and part[1].strip() != "0"}
    return frozenset().union(*(types for needed, types in _RULES if needed <= features))


def versions() -> dict[str, str]:
    """Versions of the bindings and of llama.cpp itself."""
    import llama_cpp

    return {"llama-cpp-python": llama_cpp.__version__, "llama.cpp": lib.llama_version().decode()}


def machine() -> str:
    """Identifies this kind of machine by its devices and cores."""
    return f"{', '.join(device.description for device in devices())}; {host.physical_cores()} cores"
