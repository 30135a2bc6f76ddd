"""`specdec doctor`: what this installation can do, and what would make it do more."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer


def doctor(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this installation can do: build, devices, memory, versions, caches, the bundled pair."""
    import json

    findings = _findings()
    if json_:
        typer.echo(json.dumps(findings, indent=2))
    else:
        _show(findings)
    raise typer.Exit(0 if findings["bundled_pair"]["ok"] and not findings["config_problem"] else 1)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """An accelerator that the system shows, whether or not the build can use it."""

    name: str
    accel: str
    missing: str


def _findings() -> dict[str, Any]:
    from specdec_cli import __version__
    from specdec_cli.hub import cache
    from specdec_cli.llama import library
    from specdec_cli.models import profiles
    from specdec_cli.models.user_files import config_dir
    from specdec_cli.store import corpora

    devices = library.devices()
    gpu = None if library.supports_gpu() else _unused_gpu()
    return {
        "versions": {
            "specdec": __version__,
            "python": platform.python_version(),
            **library.versions(),
            "huggingface-hub": cache.version(),
            "platform": platform.platform(),
        },
        "build": library.build_flags(),
        "gpu_offload": library.supports_gpu(),
        "devices": [asdict(device) for device in devices],
        "threads": library.physical_cores(),
        "memory_available": library.available_memory(),
        "unused_gpu": {**asdict(gpu), "command": _enable(gpu)} if gpu else None,
        "weights_cache": str(cache.cache_dir()),
        "corpora": {"folder": str(corpora.folder()), "bytes": corpora.kept_bytes()},
        "config": str(config_dir()),
        "config_problem": _config_problem(),
        "profiles": profiles.names(),
        "bundled_pair": _bundled_pair(),
    }


def _config_problem() -> str:
    """What is wrong with the user's own settings, for every command would fail on it."""
    from specdec_cli.decoding.errors import DownloadError, SpecdecError
    from specdec_cli.engine.config_layers import resolve

    try:
        resolve(None, {})
    except DownloadError:  # a pair that is to be pulled is no mistake
        pass
    except SpecdecError as error:
        return f"{error} {error.hint}"
    return ""


def _bundled_pair() -> dict[str, Any]:
    """Read, compare and run the demo pair for a few tokens, whatever the user's own settings say."""
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.decoding.metrics import Metrics
    from specdec_cli.engine.config import Settings
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.pass_costs import usual_threads
    from specdec_cli.engine.session import Session
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.models import profiles
    from specdec_cli.models.user_files import bundled_dir

    folder = bundled_dir() / profiles.DEMO
    settings = Settings(
        str(folder / "target.gguf"),
        str(folder / "draft.gguf"),
        draft_tokens=3,
        max_tokens=16,
        bitwise=True,
        ctx=512,
        threads=usual_threads(),
    )
    try:
        pair = check_pair(settings)
        with Interrupt() as interrupt, Session(pair, settings, interrupt) as session:
            prompt = session.target.tokenize("def main():")
            session.open_contexts(len(prompt))
            report = Metrics.of(session.events(prompt, seed=0))
            rounding = str(session.agreement)
    except SpecdecError as error:
        return {"ok": False, "problem": f"{error} {error.hint}"}
    works = report.emitted > 1 and report.accepted > 0 and not report.notes
    problem = "" if works else f"the models load, but do not decode as they should: {', '.join(report.notes)}"
    return {
        "ok": works,
        "target": settings.target,
        "draft": settings.draft,
        "problem": problem,
        "rounding": rounding,
    }


def _unused_gpu() -> _Gpu | None:
    """A GPU that is there but that this build cannot use."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return _Gpu("Apple silicon", "metal", "")
    if names := _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        return _Gpu(names.splitlines()[0], "cuda", "" if shutil.which("nvcc") else "the CUDA toolkit (nvcc)")
    if any(Path("/dev/dri").glob("renderD*")):
        return _Gpu("a GPU with a render node", "vulkan", "" if shutil.which("glslc") else "the Vulkan SDK (glslc)")
    return None


def _enable(gpu: _Gpu) -> str:
    """The command that rebuilds llama.cpp for this GPU."""
    flag = {"cuda": "GGML_CUDA", "metal": "GGML_METAL", "vulkan": "GGML_VULKAN"}[gpu.accel]
    return (
        f'CMAKE_ARGS="-D{flag}=on" {sys.executable} -m pip install --force-reinstall --no-cache-dir --no-deps '
        "llama-cpp-python"
    )


def _ask(*command: str) -> str:
    """What a program prints, or nothing if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _show(findings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, version in findings["versions"].items():
        grid.add_row(name, version)
    grid.add_row("build", findings["build"])
    for device in findings["devices"]:
        size = f"{device['free'] / 1e9:.1f} of {device['total'] / 1e9:.1f} GB free"
        grid.add_row(device["kind"], f"{device['name']}: {device['description']}, {size}")
    grid.add_row("threads", str(findings["threads"]))
    grid.add_row("GPU offload", "all layers by default" if findings["gpu_offload"] else "not in this build")
    grid.add_row("weights", findings["weights_cache"])
    if kept := findings["corpora"]["bytes"]:
        grid.add_row("corpora", f"{findings['corpora']['folder']}, {kept / 1e6:,.1f} MB of indexes")
    grid.add_row("settings", findings["config"])
    if problem := findings["config_problem"]:
        grid.add_row("", f"with a mistake: {problem}")
    grid.add_row("profiles", f"{len(findings['profiles'])}; specdec ls lists them")
    pair = findings["bundled_pair"]
    grid.add_row("bundled pair", "works: tokenizers fit, both models decode" if pair["ok"] else pair["problem"])
    if pair["ok"]:
        grid.add_row("rounding", f"bundled target: {pair['rounding']}")
    console.print(grid)
    if gpu := findings["unused_gpu"]:
        console.print(f"\n{gpu['name']} is there, but this build cannot use it. To enable it:", style="bold")
        if gpu["missing"]:
            console.print(f"  first install {gpu['missing']}, then")
        console.print(f"  make ACCEL={gpu['accel']} setup     (in a checkout)")
        console.print(f"  {gpu['command']}", soft_wrap=True, markup=False)
