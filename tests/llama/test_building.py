"""Flags for a build of llama.cpp: what a compiler gets wrong is found in its machine code, on any x86-64 processor."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_cli.llama import building

HEADER = ["-include", str(Path(building.__file__).with_name("amx_tile_config.h"))]
x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not building.compiler(), reason="AMX is Intel's, and needs a compiler"
)


def faulty(*flags):
    return building.drops_tile_config(building.compiler(), *flags)


@x86
def test_with_the_header_the_tile_configuration_arrives():
    """Whatever the compiler is; with the flags of the build."""
    assert not faulty(*HEADER) and not faulty("-march=native", *HEADER)


@x86
def test_a_compiler_that_drops_it_is_found_out(tmp_path):
    """A header that says again what the faulty ones say: that 8 bytes are read."""
    header = tmp_path / "faulty.h"
    header.write_text(
        "#include <immintrin.h>\n#undef _tile_loadconfig\n"
        '#define _tile_loadconfig(p) __asm__ volatile("ldtilecfg\\t%X0" :: "m"(*((const void **)(p))))\n'
    )
    assert faulty("-include", str(header))


@x86
def test_the_flags_have_the_header_where_the_compiler_needs_it(monkeypatch):
    for drops in (False, True):
        monkeypatch.setattr(building, "drops_tile_config", lambda *_, drops=drops: drops)
        said = " ".join(building.flags("cpu"))
        assert ("amx_tile_config.h" in said) == drops and "-DGGML_OPENMP=OFF" in said


def test_a_compiler_that_is_no_compiler_or_knows_no_amx_needs_nothing(tmp_path):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    assert not building.drops_tile_config(str(script)) and not building.drops_tile_config(str(tmp_path / "none"))


def test_each_attempt_asks_less_of_the_processor(monkeypatch):
    monkeypatch.setattr(building, "drops_tile_config", lambda *_: False)
    monkeypatch.setenv("CMAKE_ARGS", '-DGGML_BLAS=ON "-DX=a b"')
    first, second, third = (building.flags("cuda", attempt) for attempt in range(3))
    assert "-DGGML_CUDA=on" in first and first[-2:] == second[-2:] == third[-2:] == ["-DGGML_BLAS=ON", "-DX=a b"]
    assert "-DGGML_CPU_REPACK=OFF" in second and "-DGGML_CPU_REPACK=OFF" not in first
    assert "-DGGML_NATIVE=OFF" in third and "-DGGML_AVX2=OFF" in third and "-DGGML_NATIVE=OFF" not in second


@pytest.mark.parametrize("off_the_path", [True, False])
def test_cudas_compiler_is_found_by_its_variable_and_off_the_path(tmp_path, monkeypatch, off_the_path):
    nvcc = tmp_path / "nvcc"
    nvcc.touch(0o755)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(building, "output", lambda *_: "GPU 0: H100")
    monkeypatch.setattr(building, "drops_tile_config", lambda *_: False)
    monkeypatch.setattr(building, "_NVCC", str(nvcc if off_the_path else tmp_path / "none"))
    monkeypatch.setenv("CUDACXX", "" if off_the_path else str(nvcc))
    monkeypatch.setenv("PATH", "")
    assert building.accelerator() == "cuda" and f"-DCMAKE_CUDA_COMPILER={nvcc}" in building.flags("cuda")


def test_the_key_tells_processors_compilers_and_flags_apart(monkeypatch):
    keys = {building.key("cpu"), building.key("cpu"), building.key("vulkan")}
    monkeypatch.setenv("CMAKE_ARGS", "-DX=1")
    keys.add(building.key("cpu"))
    monkeypatch.setattr(building, "processor", lambda: "another")
    keys.add(building.key("cpu"))
    monkeypatch.setattr(building, "compiler", lambda: "")
    assert len({*keys, building.key("cpu")}) == 5


def test_it_runs_before_anything_is_installed(tmp_path):
    """As a script, with nothing but Python."""
    command = [sys.executable, "-I", "-S", building.__file__, "flags", "--accel", "metal"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert "-DGGML_METAL=on" in shlex.split(done.stdout)


def test_what_fails_is_built_again_with_less(tmp_path, monkeypatch, capfd):
    """With a pip that pretends to install, and a trial that fails as often as it is told."""
    calls, fails = [], 0

    def run(command, **rest):
        calls.append(command)
        if "specdec_cli.llama.kernels" in command:
            failed = sum(command == call for call in calls) <= fails
            return subprocess.CompletedProcess(command, int(failed), "the fast kernels fail" if failed else "works")
        return subprocess.CompletedProcess(command, 7 if "refused" in command else 0, str(tmp_path))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(building, "drops_tile_config", lambda *_: False)
    monkeypatch.setenv("CMAKE_ARGS", "")
    for fails, code, installs in ((0, 0, 1), (1, 0, 2), (3, 1, 3)):
        calls.clear()
        assert building.install("cpu", ["-e", "."]) == code
        made = [command for command in calls if "install" in command]
        assert len(made) == installs and sum("uninstall" in command for command in calls) == installs - 1
        assert len({command[command.index("--cache-dir") + 1] for command in made}) == installs
        said = capfd.readouterr()
        assert ("fast kernels fail" in said.out + said.err) == (fails > 0)
        assert (building.ATTEMPTS[installs - 1] in said.out) == (fails > 0)
    assert building.install("cpu", ["refused"]) == 7
