"""benchmarks/gpu/pack.py: what it leaves out of the bindings' source package, and which wheels are missing."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import pack

pytestmark = pytest.mark.slow

LLAMA = "vendor/llama.cpp/"
LONG = LLAMA + "ggml/src/ggml-cuda/template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_1-and-longer-yet.cu"


@pytest.mark.parametrize(
    "path",
    [
        "llama_cpp/llama_cpp.py",
        LLAMA + "CMakeLists.txt",
        LLAMA + "cmake/build-info.cmake",
        LLAMA + "src/models/llama.cpp",
        LLAMA + "ggml/cmake/common.cmake",
        LLAMA + "ggml/src/ggml-alloc.c",
        LLAMA + "ggml/src/ggml-cpu/arch/x86/quants.c",
        LLAMA + "ggml/src/ggml-cuda/mmvq.cu",
        LLAMA + "ggml/src/ggml-cuda/vendors/cuda.h",
        LLAMA + "common/jinja/parser.cpp",
        LLAMA + "tools/server/server-context.cpp",
        LLAMA + "tools/mtmd/debug/mtmd-debug.cpp",
        LLAMA + "tools/ui/ui.cpp.in",
        LLAMA + "scripts/ui-assets.cmake",
        LLAMA + "examples/speculative-simple/speculative-simple.cpp",
        LLAMA + "vendor/nlohmann/json.hpp",
        LONG,
    ],
)
def test_what_a_build_reads_is_kept(path):
    assert pack.is_kept(path)


@pytest.mark.parametrize(
    "path",
    [
        ".git/objects/pack/pack-1.pack",
        "docs/index.md",
        "examples/notebooks/Batching.ipynb",
        LLAMA + "models/ggml-vocab-qwen2.gguf",
        LLAMA + "media/matmul.png",
        LLAMA + "tests/test-backend-ops.cpp",
        LLAMA + "benches/dgx-spark/run.sh",
        LLAMA + "ggml/src/ggml-vulkan/ggml-vulkan.cpp",
        LLAMA + "ggml/src/ggml-cuda-else/x.cu",
        LLAMA + "tools/ui/src/app.html",
        LLAMA + "tools/server/tests/unit/test_basic.py",
        LLAMA + "tools/quantize/quantize.cpp",
        LLAMA + "examples/simple/simple.cpp",
        LLAMA + "scripts/hf.sh",
    ],
)
def test_what_no_build_reads_is_left_out(path):
    assert not pack.is_kept(path)


def source_package(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as package:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"llama_cpp_python-9.9/{name}")
            entry.size, entry.mode = len(text), 0o644
            package.addfile(entry, io.BytesIO(text.encode()))


def test_the_slim_package_builds_only_what_it_holds(tmp_path):
    """Folders that were left out are added by no CMakeLists.txt, and names over 100 characters stay whole."""
    tools = (
        "if (A)\n    add_subdirectory(quantize)\nendif()\nadd_subdirectory(server)\n  add_subdirectory(${backend})\n"
    )
    files = {
        LLAMA + "tools/CMakeLists.txt": tools,
        LLAMA + "tools/server/main.cpp": "int main() {}",
        LLAMA + "tools/quantize/main.cpp": "int main() {}",
        LONG: "kernel",
        "docs/index.md": "text",
    }
    source_package(tmp_path / "sdist.tar.gz", files)
    pack.slim(tmp_path / "sdist.tar.gz", tmp_path / "slim.tar.xz")
    with tarfile.open(tmp_path / "slim.tar.xz") as slim:
        found = {member.name: slim.extractfile(member).read().decode() for member in slim}
    assert found == {
        LLAMA + "tools/CMakeLists.txt": "if (A)\nendif()\nadd_subdirectory(server)\n  add_subdirectory(${backend})\n",
        LLAMA + "tools/server/main.cpp": "int main() {}",
        LONG: "kernel",
    }


def test_packages_are_named_by_hand_or_in_lists(tmp_path):
    listing = tmp_path / "there.txt"
    listing.write_text("numpy==2.5.2\nHuggingface_Hub==1.33.0\n\n# a comment\ntyper @ file:///somewhere\n")
    assert pack.names_in([str(listing), "PyYAML"]) == {"numpy", "huggingface-hub", "typer", "pyyaml"}


def test_what_the_other_machine_has_is_not_needed():
    everything = pack.needed(set())
    assert any(text.startswith("numpy") for text in everything)
    assert not any(text.startswith(("llama", "matplotlib")) for text in everything)
    assert {text.partition(">")[0] for text in pack.needed({"numpy", "jinja2", "pyyaml", "rich", "typer"})} <= {
        *("diskcache", "huggingface-hub", "msgspec", "platformdirs", "typing-extensions")
    }
