"""Weights ask for huge pages, where the system gives them only to those who ask."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from driver import TARGET

from specdec_cli.llama import huge_pages


def allocate(count):
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def asking():
    """Bytes of this process's mappings that ask for huge pages."""
    size = total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = 1024 * int(line.split()[1])
        total += size if line.startswith("VmFlags:") and "hg" in line.split() else 0
    return total


@pytest.fixture(params=["always [madvise] never"])
def setting(request, tmp_path, monkeypatch):
    path = tmp_path / "enabled"
    path.write_text(request.param)
    monkeypatch.setattr(huge_pages, "_SETTING", path)
    return path


@pytest.mark.usefixtures("setting")
def test_names_of_mapped_files_may_be_any_bytes(tmp_path, monkeypatch):
    mappings = tmp_path / "maps"
    mappings.write_bytes(b"1000-2001000 rw-p 0 00:00 0 \n2001000-4001000 rw-p 0 fe:00 12   /tmp/\xff x\n")
    monkeypatch.setattr(huge_pages, "_MAPPINGS", mappings)
    assert huge_pages._large() == {(0x1000, 0x2001000)}


@pytest.mark.usefixtures("setting")
def test_new_large_memory_asks_once():
    with allocate(1 << 26):
        memory, before = huge_pages.NewMemory(), asking()
        with allocate(1 << 26), allocate(1 << 20):
            memory.use_huge_pages()
            assert asking() - before >= 1 << 26
            more = asking()
            with allocate(1 << 27):
                memory.use_huge_pages()
                assert asking() == more


@pytest.mark.usefixtures("setting")
@pytest.mark.parametrize("setting", ["[always] madvise never", "always madvise [never]"], indirect=True)
def test_nobody_asks_where_it_makes_no_difference():
    memory, before = huge_pages.NewMemory(), asking()
    with allocate(1 << 26):
        memory.use_huge_pages()
        assert asking() == before


@pytest.mark.usefixtures("setting")
@pytest.mark.parametrize("missing", ["_SETTING", "_MAPPINGS"])
def test_a_system_that_does_not_say_is_not_asked(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(huge_pages, missing, tmp_path / "missing")
    memory, before = huge_pages.NewMemory(), asking()
    with allocate(1 << 26):
        memory.use_huge_pages()
        assert asking() == before


LOADING = """
import sys
from pathlib import Path
from specdec_cli.llama import huge_pages, library, model
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement

found, use = [], huge_pages.NewMemory.use_huge_pages

def watched(memory):
    found.append(huge_pages._large() - (memory._old or set()))
    use(memory)

huge_pages._SETTING, huge_pages._LEAST, huge_pages.NewMemory.use_huge_pages = Path(sys.argv[2]), 1 << 20, watched
model.Model(Path(sys.argv[1]), Placement(devices=()), Interrupt()).close()
assert found
assert found[0] or "REPACK = 1" not in library.build_flags()  # otherwise, weights stay in the file's pages
"""


def test_weights_are_allocated_when_they_ask(setting):
    """In a new process: in an old one, weights as small as these may get memory that was used before."""
    subprocess.run([sys.executable, "-c", LOADING, TARGET, setting], check=True)
