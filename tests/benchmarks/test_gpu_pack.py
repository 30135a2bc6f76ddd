"""benchmarks/gpu/pack.py: what it leaves out of the bindings' source package, and which wheels are missing."""

import io
import tarfile
from pathlib import Path

import pack
import pytest

pytestmark = pytest.mark.slow

LLAMA = "vendor/llama.cpp/"
LONG = LLAMA + "ggml/src/ggml-cuda/template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_1-and-longer-yet.cu"


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
        "llama_cpp/llama_cpp.py": "bindings",
        LLAMA + "media/matmul.png": "a picture",
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
        "llama_cpp/llama_cpp.py": "bindings",
        LLAMA + "tools/CMakeLists.txt": "if (A)\nendif()\nadd_subdirectory(server)\n  add_subdirectory(${backend})\n",
        LLAMA + "tools/server/main.cpp": "int main() {}",
        LONG: "kernel",
    }


def test_what_the_other_machine_has_is_not_needed():
    everything = pack.needed(set())
    assert any(text.startswith("numpy") for text in everything)
    assert not any(text.startswith("llama") for text in everything)
    assert not any(text.startswith("numpy") for text in pack.needed({"numpy"}))
