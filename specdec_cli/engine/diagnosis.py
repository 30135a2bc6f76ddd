"""What this installation can do, and what would make it do more: behind `doctor`."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from specdec_cli import __version__
from specdec_cli.decoding.errors import DownloadError, SpecdecError
from specdec_cli.engine.config import Settings
from specdec_cli.engine.config_layers import resolve
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.pass_costs import usual_threads
from specdec_cli.hub import cache
from specdec_cli.llama import extensions, host, library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.models import profiles, user_files
from specdec_cli.results import BundledPair, CorpusCache, Diagnosis, UnusedGpu
from specdec_cli.store import corpora

_CMAKE_FLAGS = {"cuda": "GGML_CUDA", "metal": "GGML_METAL", "vulkan": "GGML_VULKAN"}


def diagnose() -> Diagnosis:
    """Examine the build, the devices, the settings and the caches, and run the bundled pair for some tokens."""
    versions = {"specdec": __version__, "python": platform.python_version(), **library.versions()}
    return Diagnosis(
        {**versions, "huggingface-hub": version("huggingface-hub"), "platform": platform.platform()},
        library.build_flags(),
        library.supports_gpu(),
        tuple(library.devices()),
        host.physical_cores(),
        host.available_memory(),
        None if library.supports_gpu() else _unused_gpu(),
        str(cache.cache_dir()),
        CorpusCache(str(corpora.folder()), corpora.kept_bytes()),
        str(user_files.config_dir()),
        _config_problem(),
        tuple(profiles.names()),
        _bundled_pair(),
        tuple(extensions.missing()),
        library.knows_rpc(),
    )


def _config_problem() -> str:
    """What is wrong with the user's own settings: every command would fail on it."""
    try:
        resolve(None, {})
    except DownloadError:  # a pair that is still to be pulled is no mistake
        pass
    except SpecdecError as error:
        return f"{error} {error.hint}"
    return ""


def _bundled_pair() -> BundledPair:
    folder = user_files.bundled_dir() / profiles.DEMO
    target, draft = str(folder / "target.gguf"), str(folder / "draft.gguf")
    threads = usual_threads()
    try:
        settings = Settings(target, draft, draft_tokens=3, max_tokens=16, bitwise=True, ctx=512, threads=threads)
        with Interrupt() as interrupt, Engine(settings, interrupt) as engine:
            metrics = engine.generate("def main():").metrics
            rounding = str(engine.costs.agreement)
    except SpecdecError as error:
        return BundledPair(False, f"{error} {error.hint}")
    works = metrics.emitted > 1 and metrics.accepted > 0 and not metrics.notes
    problem = "" if works else f"the models load, but do not decode as they should: {', '.join(metrics.notes)}"
    return BundledPair(works, problem, target, draft, rounding)


def _unused_gpu() -> UnusedGpu | None:
    """A GPU that is there, for a build that cannot use any."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return _gpu("Apple silicon", "metal", "")
    if names := _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        return _gpu(names.splitlines()[0], "cuda", "" if shutil.which("nvcc") else "the CUDA toolkit (nvcc)")
    if any(Path("/dev/dri").glob("renderD*")):
        return _gpu("a GPU with a render node", "vulkan", "" if shutil.which("glslc") else "the Vulkan SDK (glslc)")
    return None


def _gpu(name: str, accel: str, missing: str) -> UnusedGpu:
    pip = f"{sys.executable} -m pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python"
    return UnusedGpu(name, accel, missing, f'CMAKE_ARGS="-D{_CMAKE_FLAGS[accel]}=on" {pip}')


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
