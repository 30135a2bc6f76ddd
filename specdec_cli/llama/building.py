"""Builds llama.cpp for this machine: the flags, changes to its source, and a trial of the build.

It needs only Python, because `make setup` runs it before anything is installed:

    python building.py install [--accel auto] [-- PIP ARGUMENTS]  install with pip, try it, build more simply if needed
    python building.py flags [--accel auto]                       the CMAKE_ARGS of the first attempt
    python building.py key [--accel auto]                         a key for this machine, compiler and flags
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ACCELERATORS = {"cpu": "-DGGML_METAL=off", "cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on"}
ACCELERATORS["vulkan"] = "-DGGML_VULKAN=on"
# No multimodal library. RPC for --rpc. No OpenMP: it becomes slow as soon as two threads compute (computing.py).
_FLAGS = ("-DLLAVA_BUILD=off", "-DGGML_RPC=ON", "-DGGML_RPC_RDMA=OFF", "-DGGML_OPENMP=OFF")
# With AVX512-FP16, llama.cpp's attention works in steps of 128 numbers, and takes heads of 64 a number at a time.
_NO_FP16 = "-mno-avx512fp16"
_HEADER = Path(__file__).with_name("amx_tile_config.h")
_CHANGES = Path(__file__).with_name("changes.cmake")
_K_QUANTS = Path(__file__).with_name("k_quants.h")
_NVCC = "/usr/local/cuda/bin/nvcc"

ATTEMPTS = ("as fast as it can be", "without repacked weights and AMX", "for any processor of this kind")
_INSTRUCTION_SETS = ("SSE42", "AVX", "AVX2", "AVX_VNNI", "BMI2", "FMA", "F16C", "AVX512", "LLAMAFILE")


def compiler() -> str:
    """The C++ compiler that CMake will use; empty if there is none."""
    return shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or ""


def nvcc() -> str:
    """CUDA's compiler; empty if there is none. NVIDIA's packages don't put it on the path."""
    return shutil.which(os.environ.get("CUDACXX") or "nvcc") or shutil.which(_NVCC) or ""


def output(*command: str) -> str | None:
    """What a command prints; None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def accelerator() -> str:
    """What to build for. CUDA needs a GPU that responds and its compiler; the compiler alone isn't enough."""
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return "metal"
    has_cuda = nvcc() and "GPU" in (output("nvidia-smi", "-L") or "")
    return "cuda" if has_cuda else "cpu"


def flags(accel: str, attempt: int = 0) -> list[str]:
    """The arguments for CMake; the user's own CMAKE_ARGS come last and win. attempt: which of `ATTEMPTS`."""
    chosen, cxx_flags = [*_FLAGS, ACCELERATORS[accel]], shlex.split(os.environ.get("CXXFLAGS", ""))
    chosen.append(f"-DCMAKE_PROJECT_ggml_INCLUDE={_CHANGES.as_posix()}")
    if accel == "cuda" and nvcc():
        chosen += [f"-D{name}={nvcc()}" for name in ("CMAKE_CUDA_COMPILER", "CUDAToolkit_NVCC_EXECUTABLE")]
    if os.name == "posix" and platform.machine().lower() in ("x86_64", "amd64"):
        if "$" not in str(_HEADER):  # Make and Ninja would expand it
            cxx_flags += ["-include", str(_HEADER)]
        cxx_flags += _known(_NO_FP16)
    if attempt:
        chosen.append("-DGGML_CPU_REPACK=OFF")
        cxx_flags += _known("-mno-amx-tile", "-mno-amx-int8")
    if attempt > 1:
        chosen += ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=OFF" for name in _INSTRUCTION_SETS)]
    if cxx_flags:
        chosen.append(f"-DCMAKE_CXX_FLAGS={shlex.join(cxx_flags)}")
    return [*chosen, *shlex.split(os.environ.get("CMAKE_ARGS", ""))]


def _known(*options: str) -> Sequence[str]:
    """These options if the compiler knows them, otherwise none."""
    return options if output(compiler(), *options, "-E", "-x", "c++", os.devnull) is not None else ()


def processor() -> str:
    """The processor's model and features, as the system reports them; the same on all machines of a kind."""
    try:
        with Path("/proc/cpuinfo").open("rb") as file:  # the first core is enough: a large machine has many
            text = file.read(1 << 14).split(b"\n\n")[0].decode("utf-8", "replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = (line.partition(":") for line in text.splitlines())
    names = ("model name", "flags", "Features", "CPU part")
    kept = [value.strip() for name, _, value in lines if name.strip() in names]
    return f"{platform.machine()} {' '.join(kept)}"


def key(accel: str) -> str:
    """Identifies builds for this processor and its GPUs, by these compilers, with these flags."""
    version = output(compiler(), "--version") or ""
    files = [path.read_text() for path in (_HEADER, _CHANGES, _K_QUANTS)]
    parts = [processor(), version, *_FLAGS, _NO_FP16, os.environ.get("CMAKE_ARGS", ""), *files]
    if accel == "cuda":  # its code is for the GPUs that are there
        queries = (nvcc(), "--version"), ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
        parts += [output(*query) or "" for query in queries]
    return f"{accel}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:8]}"


def command(accel: str = "") -> str:
    """The command that rebuilds llama.cpp with the flags that it needs here."""
    return f"{shlex.quote(sys.executable)} -m specdec_cli.llama.building install{accel and f' --accel {accel}'}"


def install(accel: str, pip_arguments: Sequence[str]) -> int:
    """Install with pip and try the build; build a simpler one if it doesn't work. Returns an exit code."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if output(*pip, "--version") is None:  # uv creates environments without pip
        subprocess.run([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=False)
    cache, name = (output(*pip, "cache", "dir") or "").strip(), key(accel)
    print(f"Building llama.cpp for {accel}. It takes a few minutes, unless it's in the cache.", flush=True)
    own = pip_arguments or ["--force-reinstall", "--no-deps", "--no-binary", "llama-cpp-python", "llama-cpp-python"]
    fault = ""
    for attempt, how in enumerate(ATTEMPTS):
        # pip's cache ignores CMAKE_ARGS, so each kind of build gets its own cache folder.
        where = ["--cache-dir", str(Path(cache) / f"specdec-{name}-{attempt}")] if cache else []
        environment = {**os.environ, "CMAKE_ARGS": " ".join(map(shlex.quote, flags(accel, attempt)))}
        code = subprocess.run([*pip, "install", "-q", *where, *own], env=environment, check=False).returncode
        if code:
            return code
        tried = subprocess.run(
            [sys.executable, "-m", "specdec_cli.llama.kernels"], stdout=subprocess.PIPE, text=True, check=False
        )
        if not tried.returncode:
            if attempt:
                print(f"llama.cpp was built {how}: {fault}", flush=True)
            return 0
        fault = tried.stdout.strip()
        if attempt + 1 < len(ATTEMPTS):
            print(f"{fault}\nBuilding llama.cpp again, {ATTEMPTS[attempt + 1]}.", flush=True)
            subprocess.run([*pip, "uninstall", "-q", "-y", "llama-cpp-python"], check=False)
    print(fault, file=sys.stderr)
    return 1


def main() -> int:
    import argparse  # takes five milliseconds, too long for every start of specdec

    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description="Build llama.cpp for this machine.")
    parser.add_argument("what", choices=["install", "flags", "key"])
    parser.add_argument("--accel", choices=["auto", *ACCELERATORS], default="auto", help="what to build for")
    parser.epilog = "After --: arguments for pip install; without any, llama-cpp-python is built again."
    chosen = parser.parse_args(arguments[:end])
    accel = accelerator() if chosen.accel == "auto" else chosen.accel
    if chosen.what == "install":
        return install(accel, arguments[end + 1 :])
    print(key(accel) if chosen.what == "key" else " ".join(map(shlex.quote, flags(accel))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
