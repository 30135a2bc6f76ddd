"""Collects everything that a machine without a network needs to build specdec with llama.cpp and its peers.

    python benchmarks/gpu/pack.py [--into FOLDER] [--have NAME ...] [--python-version 3.12]

Run it where there is a network. It removes what no build reads from the source package of the installed
llama-cpp-python: models, documents, tests, and the backends except the CPU's and CUDA's; 76 MB become 4. Of the tools
and examples, it keeps llama-server and llama-speculative-simple. The wheels are those that specdec and the bindings
need, without those that the other machine has (--have: names, or files from `pip list --format=freeze`).
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from importlib.metadata import requires, version
from pathlib import Path

HERE = Path(__file__).parent
ARCHIVE = "llama.tar.xz"
_LLAMA = "vendor/llama.cpp/"
_OF_LLAMA = (
    *("CMakeLists.txt", "LICENSE", "licenses/", "cmake/", "common/", "include/", "src/", "vendor/"),
    *("ggml/CMakeLists.txt", "ggml/cmake/", "ggml/include/", "ggml/src/"),
    *("examples/CMakeLists.txt", "examples/speculative-simple/", "tools/CMakeLists.txt", "tools/mtmd/"),
    *("tools/server/", "tools/ui/CMakeLists.txt", "tools/ui/sources.cmake", "tools/ui/ui.cpp.in"),
    *("tools/ui/ui.h.in", "scripts/ui-assets.cmake"),
)
_KEPT = ("LICENSE.md", "llama_cpp/", *(_LLAMA + path for path in _OF_LLAMA))
_DROPPED = re.compile(
    rf"{re.escape(_LLAMA)}(ggml/src/(?!ggml-cpu/|ggml-cuda/)ggml-[^/]+/"
    r"|tools/(server|mtmd)/(tests|bench|legacy-models)/|(tools|common)/.*\.(md|py|wav|png|jpe?g|mp3)$)"
)
_FOLDER = re.compile(r"^\s*add_subdirectory\(([\w./-]+)\)[ \t]*\n", re.MULTILINE)


def is_kept(path: str) -> bool:
    """Whether a file is needed. path: relative to the top of the source package."""
    return any(path == kept or (kept.endswith("/") and path.startswith(kept)) for kept in _KEPT) and not (
        _DROPPED.match(path)
    )


def without_missing(text: str, folder: str, kept: Iterable[str]) -> str:
    """A CMakeLists.txt of `folder`, without the lines that add folders of which nothing was kept."""
    files = list(kept)

    def there(name: str) -> bool:
        return any(path.startswith(f"{folder}/{name}/") for path in files)

    return _FOLDER.sub(lambda found: found[0] if there(found[1]) else "", text)


def slim(sdist: Path, archive: Path) -> None:
    """Write the needed files of a source package to a .tar.xz, without its top folder."""
    with tarfile.open(sdist) as source, tarfile.open(archive, "w:xz", preset=9) as slimmed:
        members = {member.name.partition("/")[2]: member for member in source.getmembers() if member.isfile()}
        kept = sorted(path for path in members if is_kept(path))
        for path in kept:
            content = source.extractfile(members[path])
            data = content.read() if content else b""
            if path.endswith("/CMakeLists.txt"):
                data = without_missing(data.decode(), path.rpartition("/")[0], kept).encode()
            entry = tarfile.TarInfo(path)  # not the old entry: its pax headers keep the long name
            entry.size, entry.mode, entry.mtime = len(data), members[path].mode, members[path].mtime
            slimmed.addfile(entry, io.BytesIO(data))


def normal(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(given: Iterable[str]) -> set[str]:
    """Packages given by name, or in files with one per line; anything after the name is ignored."""
    found: set[str] = set()
    for text in given:
        lines = Path(text).read_text().splitlines() if Path(text).is_file() else [text]
        found |= {normal(match[0]) for line in lines if (match := re.match(r"[A-Za-z0-9][\w.-]*", line.strip()))}
    return found


def needed(have: set[str]) -> list[str]:
    """The requirements of specdec and of the bindings, except the bindings themselves and the packages in `have`."""
    every = [*(requires("specdec-cli") or ()), *(requires("llama-cpp-python") or ())]
    mine = {text: normal(re.match(r"[\w.-]+", text)[0]) for text in every if "extra ==" not in text}  # type: ignore[index]
    return sorted(text for text, name in mine.items() if name not in have | {"llama-cpp-python"})


def pip(*arguments: str) -> str:
    """Run pip; returns what it printed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def wheels(into: Path, have: set[str], wanted: list[str], python_version: str, glibc: int) -> None:
    """Download the wheels that another machine lacks."""
    machine = platform.machine()
    tags = [f"manylinux_2_{n}_{machine}" for n in range(glibc, 4, -1)] + [f"manylinux2014_{machine}"]
    there = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python_version}"]
    there += [f"--platform={tag}" for tag in tags]
    roots = [*needed(have), *wanted]
    if not roots:
        return
    with tempfile.TemporaryDirectory() as nowhere:
        report = pip("install", "-q", "--dry-run", "--report=-", f"--target={nowhere}", *there, *roots)
    found = {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in json.loads(report)["install"]}
    missing = [f"{name}=={number}" for name, number in found.items() if name not in have or name in names_in(wanted)]
    pip("download", "-q", "--no-deps", f"--dest={into}", *there, *missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=HERE / "carry")
    parser.add_argument("--have", nargs="+", default=[], metavar="NAME", help="packages of the other machine, or files")
    parser.add_argument("--wheel", action="append", default=[], help="also pack this package; can be repeated")
    parser.add_argument("--python-version", default="3.12", help="of the other machine")
    parser.add_argument("--glibc", type=int, default=35, metavar="N", help="the other machine's is 2.N or newer")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for old in options.into.glob("*.whl"):
        old.unlink()
    wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "-q", "--no-deps", "--no-binary=llama-cpp-python", f"--dest={folder}", wanted)
        slim(next(Path(folder).glob("*.tar.gz")), options.into / ARCHIVE)
    wheels(options.into, names_in(options.have), options.wheel, options.python_version, options.glibc)
    for path in sorted(options.into.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")
    print(f"{sum(path.stat().st_size for path in options.into.iterdir()) / 1e6:8.2f} MB  in total")


if __name__ == "__main__":
    main()
