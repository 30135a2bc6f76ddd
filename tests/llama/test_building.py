"""Flags for a build of llama.cpp, and the header that repairs what a compiler gets wrong."""

import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.llama import building
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.shared_context import SharedContext

PATTERN = """
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

struct tile_config { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; };

extern "C" __attribute__((noinline)) void configure() {
    static thread_local bool done = false;
    if (done) return;
    alignas(64) tile_config config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) { config.rows[i] = 8 + i; config.row_bytes[i] = 32 + i; }
    _tile_loadconfig(&config);
    done = true;
}

extern "C" __attribute__((noreturn, used)) void report(const uint8_t * bytes) {
    for (int i = 0; i < 64; ++i) printf("%d ", bytes[i]);
    fflush(stdout);
    _exit(0);
}

int main() { configure(); return 1; }
"""
"""What ggml does before its first AMX pass. `report` replaces the instruction, so no AMX is needed."""
EXPECTED = [1, *[0] * 15, *(byte for i in range(8) for byte in (32 + i, 0)), *[0] * 16, *range(8, 16), *[0] * 8]
INSTRUCTION = re.compile(r"^\s*ldtilecfg\s+(.*)$", re.MULTILINE)
# Move the stack pointer below the bytes first: they may lie in the red zone.
CALL = r"\tleaq \1, %rdi\n\tsubq $4096, %rsp\n\tandq $-64, %rsp\n\tcall report"

HEADER = ["-include", str(Path(building.__file__).with_name("amx_tile_config.h"))]
x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not building.compiler(), reason="AMX is Intel's, and needs a compiler"
)


def faulty(tmp_path, *flags):
    """Whether the compiler drops the contents of AMX's tile configuration, at the build's optimisation level.

    It compiles ggml's own pattern to assembly, where a call that prints the bytes to be read replaces the instruction,
    so this works on any x86-64 processor.
    """
    source, code, program = tmp_path / "pattern.cpp", tmp_path / "pattern.s", tmp_path / "pattern"
    source.write_text(PATTERN)
    cxx, options = building.compiler(), ["-O3", "-DNDEBUG", "-mamx-tile", "-mamx-int8", *flags]
    subprocess.run([cxx, *options, "-S", source, "-o", code], check=True)
    code.write_text(INSTRUCTION.sub(CALL, code.read_text()))
    subprocess.run([cxx, code, "-o", program], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return list(map(int, said.split())) != EXPECTED


@x86
@pytest.mark.slow
def test_with_the_header_the_tile_configuration_arrives(tmp_path):
    """Whatever the compiler is; with the flags of the build. A header that says again what faulty compilers say, that 8
    bytes are read, is seen.
    """
    assert not faulty(tmp_path, "-march=native", *HEADER)
    header = tmp_path / "faulty.h"
    header.write_text(
        "#include <immintrin.h>\n#undef _tile_loadconfig\n"
        '#define _tile_loadconfig(p) __asm__ volatile("ldtilecfg\\t%X0" :: "m"(*((const void **)(p))))\n'
    )
    assert faulty(tmp_path, "-include", str(header))


@x86
def test_the_build_uses_no_avx512_fp16():
    """As CMake gives the flags, before the processor's name. A compiler that doesn't know them isn't given them."""
    cxx, (flag,) = building.compiler(), (each for each in building.flags("cpu") if "CXX_FLAGS" in each)
    given = [option for option in shlex.split(flag.partition("=")[2]) if option.startswith("-m")]
    assert given == (["-mno-avx512fp16"] if building._known("-mavx512fp16") else [])
    named = building.output(cxx, *given, "-march=sapphirerapids", "-dM", "-E", "-x", "c++", os.devnull)
    assert named is None or ("__AVX512F__" in named and "__AVX512FP16__" not in named)
    assert building._known("-mno-such-thing") == ()


@pytest.mark.parametrize("beside", [0, 5, 67])
def test_what_other_texts_have_in_the_cache_changes_nothing(load, opened, beside):
    """Attention makes up its tiles of a text's own cells, so that not even rounding differs while they lie in order."""
    parts, alone = ([*range(70)], [*range(80)]), opened("target", 2)
    expected = [np.array(alone.decode(part)) for part in parts]
    with closing(SharedContext(load("target"), 512, 2, 1, Interrupt(), [Interrupt() for _ in range(3)])) as shared:
        *others, text = shared.texts
        rows = []
        for part in parts:
            for other in others if beside else ():
                other.decode([7] * beside)
            rows.append(np.array(text.decode(part)))
    assert all((own == given).all() for own, given in zip(rows, expected, strict=True))


@pytest.mark.parametrize(("machine", "has_it"), [("x86_64", True), ("arm64", False)])
def test_the_flags_have_the_header_where_there_may_be_amx(monkeypatch, machine, has_it):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CXXFLAGS", "-pipe")
    said = " ".join(building.flags("cpu"))
    assert ("CXX_FLAGS=-pipe -include" in said and "amx_tile_config.h" in said) == has_it and "-pipe" in said
    assert has_it or "-mno-avx512fp16" not in said


def test_each_attempt_asks_less_of_the_processor(monkeypatch):
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
    cards = []
    for card in ("8.6", "12.0", "12.0"):
        monkeypatch.setattr(building, "output", lambda *command, card=card: card if command[0] == "nvidia-smi" else "")
        cards.append(building.key("cuda"))
    assert cards[0] != cards[1] == cards[2], "nvcc compiles for the GPUs that are there"


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
