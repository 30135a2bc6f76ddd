"""benchmarks/gpu/pack.py: what it leaves out of the bindings' source package, and which wheels are missing."""

import io
import tarfile
from pathlib import Path

import pack
import pytest

pytestmark = pytest.mark.slow

LLAMA = "vendor/llama.cpp/"
LONG = LLAMA + "ggml/src/ggml-cuda/template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_1-and-longer-yet.cu"


KEPT = (
    *("CMakeLists.txt", "cmake/build-info.cmake", "src/models/llama.cpp", "ggml/cmake/common.cmake"),
    *("ggml/src/ggml-alloc.c", "ggml/src/ggml-cpu/arch/x86/quants.c", "ggml/src/ggml-cuda/vendors/cuda.h"),
    *("common/jinja/parser.cpp", "tools/server/server-context.cpp", "tools/mtmd/debug/mtmd-debug.cpp"),
    *("tools/ui/ui.cpp.in", "scripts/ui-assets.cmake", "examples/speculative-simple/speculative-simple.cpp"),
    "vendor/nlohmann/json.hpp",
)
LEFT_OUT = (
    *("models/ggml-vocab-qwen2.gguf", "media/matmul.png", "tests/test-backend-ops.cpp", "benches/dgx-spark/run.sh"),
    *("ggml/src/ggml-vulkan/ggml-vulkan.cpp", "ggml/src/ggml-cuda-else/x.cu", "tools/ui/src/app.html"),
    *("tools/server/tests/unit/test_basic.py", "tools/quantize/quantize.cpp", "examples/simple/simple.cpp"),
    "scripts/hf.sh",
)


@pytest.mark.parametrize("path", ["llama_cpp/llama_cpp.py", LONG, *(LLAMA + path for path in KEPT)])
def test_what_a_build_reads_is_kept(path):
    assert pack.is_kept(path)


OUTSIDE = (".git/objects/pack/pack-1.pack", "docs/index.md", "examples/notebooks/Batching.ipynb")


@pytest.mark.parametrize("path", [*OUTSIDE, *(LLAMA + path for path in LEFT_OUT)])
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
    assert not any(text.startswith("llama") for text in everything)
    assert {text.partition(">")[0] for text in pack.needed({"numpy", "jinja2", "pyyaml", "rich", "typer"})} <= {
        *(
            "diskcache",
            "greenlet",
            "huggingface-hub",
            "llguidance",
            "msgspec",
            "platformdirs",
            "prompt-toolkit",
            "typing-extensions",
        )
    }
