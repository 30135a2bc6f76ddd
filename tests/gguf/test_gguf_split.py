"""Models in several files: read as one, refused when the files do not belong together, loaded by llama.cpp."""

import io
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import gguf
import ggufs
import pytest
from driver import DRAFT, PROMPT, run

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import part_names, read_header, read_model


@pytest.fixture(scope="module")
def whole_parts(tmp_path_factory) -> list[Path]:
    """The bundled draft model in four files."""
    return ggufs.split(DRAFT, tmp_path_factory.mktemp("split"), max_tensors=5)


@pytest.fixture
def parts(whole_parts, tmp_path) -> list[Path]:
    """Copies of them that a test may change."""
    return [Path(shutil.copy(path, tmp_path)) for path in whole_parts]


def refused(path: Path, *says: str) -> SpecdecError:
    with pytest.raises(SpecdecError) as caught:
        read_header(path)
    assert all(part in f"{caught.value}\n{caught.value.hint}" for part in says) and caught.value.hint
    return caught.value


def part(keys: list[bytes] | tuple = (), tensors: tuple[str, ...] = ()) -> bytes:
    """A file of a model made by hand, of tensors of 8 values."""
    rows = [ggufs.tensor(name, (8,), offset=32 * i) for i, name in enumerate(tensors)]
    return ggufs.padded(ggufs.header(keys, rows), b"\0" * (32 * len(rows)))


def numbers(no: int, count: int, tensors: int | None = None) -> list[bytes]:
    keys = [ggufs.scalar("split.no", ggufs.U16, no), ggufs.scalar("split.count", ggufs.U16, count)]
    return keys if tensors is None else [*keys, ggufs.scalar("split.tensors.count", ggufs.I32, tensors)]


def two(total: int = 2, names: tuple[str, str] = ("t0", "t1")) -> dict[str, bytes]:
    """A model in two parts with a tensor in each."""
    return {f"m-0000{i + 1}-of-00002.gguf": part(numbers(i, 2, total), (names[i],)) for i in range(2)}


def from_memory(files: dict[str, bytes], name: str) -> Header:
    return read_model(name, lambda wanted: nullcontext((io.BytesIO(files[wanted]), len(files[wanted]))))


@pytest.mark.parametrize("order", ["little", "big"])
def test_parts_are_read_from_anywhere_each_once_and_in_order(order):
    files = {f"a/m-0000{i + 1}-of-00003.gguf": part(numbers(i, 3, 3), (f"t{i}",)) for i in range(3)}
    opened = []

    def open_file(name):
        opened.append(name)
        raw = files[name] if order == "little" else ggufs.swapped(files[name])
        return nullcontext((io.BytesIO(raw), len(raw)))

    header = read_model("a/m-00001-of-00003.gguf", open_file)
    assert opened == list(files)
    assert (header.name, header.order, header.n_params) == ("m-00001-of-00003.gguf", order, 24)
    assert [t.name for t in header.tensors] == ["t0", "t1", "t2"]


def test_the_names_of_all_parts_follow_from_any():
    names = [f"a/b-00001-of-2-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert all(part_names(name) == names for name in names)
    assert part_names("m-00001-of-00999.gguf")[-1] == "m-00999-of-00999.gguf"
    for name in (
        *("m.gguf", "-00001-of-00002.gguf", "m-00001-of-00002.bin", "m-00001-of-00002.gguf.part", "m-1-of-2.gguf"),
        *("m-00001-of-00000.gguf", "m-00001-of-00001.gguf", "m-00001-of-01000.gguf", "m-00001-of-99999.gguf"),
    ):
        assert part_names(name) == [name]


@pytest.mark.parametrize("gone", [0, 3])
def test_a_missing_part_is_named(parts, gone):
    parts[gone].unlink()
    refused(parts[0], "there is no file", parts[gone].name)


def test_a_name_that_does_not_fit_the_part(parts, tmp_path):
    refused(parts[1], f"{parts[1].name} is one of 4 parts", f"Name the first part: {parts[0].name}")
    for name in ("model.gguf", "draft-00001-of-00005.gguf", "draft-00001-of-99999.gguf"):
        refused(shutil.copy(parts[0], tmp_path / name), f"{name} is one of 4 parts", "-00001-of-0000")


@pytest.mark.parametrize(("one", "other"), [(1, 2), (0, 3)])
def test_swapped_parts_are_refused(parts, tmp_path, one, other):
    """Where the first is concerned, "name the first part" is no help: that is what has been named."""
    spare = parts[one].rename(tmp_path / "spare")
    parts[other].rename(parts[one])
    spare.rename(parts[other])
    assert f"Name the first part: {parts[0].name}" not in refused(parts[0], parts[one].name).hint


@pytest.mark.parametrize("which", [0, 3])
def test_a_cut_part_is_named(parts, which):
    raw = parts[which].read_bytes()
    needed = max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(parts[which]).tensors)
    for size in (0, 200, needed - 1):
        parts[which].write_bytes(raw[:size])
        refused(parts[0], parts[which].name)
    parts[which].write_bytes(raw[:needed])
    assert read_header(parts[0]).tensors


def test_a_part_that_is_no_model_is_named(parts):
    parts[2].write_bytes(b"<html>Not Found</html>")
    refused(parts[0], parts[2].name, "not a GGUF")
    shutil.copy(DRAFT, parts[2])
    refused(parts[0], parts[2].name, "not part 3")


def with_number(which: int, name: str, kind: int, payload: bytes) -> dict[str, bytes]:
    """Two parts, in one of which a number is something else."""
    keys = numbers(which, 2)
    keys[name == "split.count"] = ggufs.key(name, kind, payload)
    files = two()
    return {**files, list(files)[which]: part(keys, (f"t{which}",))}


ODD = {
    "true": (ggufs.BOOL, b"\1"),  # which is 1 in Python alone
    "huge": (ggufs.U64, ggufs.pack(ggufs.U64, 2**64 - 1)),
    "text": (ggufs.STRING, ggufs.text("2")),
    "a list of one": (ggufs.ARRAY, ggufs.array(ggufs.U16, 1, ggufs.pack(ggufs.U16, 2))),
}
APART = {
    **{f"{total} tensors": two(total) for total in (1, 3, -1)},
    "a tensor in two parts": two(names=("t", "t")),  # llama.cpp refuses it too, but only once it loads
    **{f"another byte order in {name}": {**two(), name: ggufs.swapped(two()[name])} for name in two()},
    **{
        f"{odd} as {name} of {which}": with_number(which, name, *value)
        for odd, value in ODD.items()
        for name in ("split.no", "split.count")
        for which in (0, 1)
    },
}


@pytest.mark.parametrize("files", APART.values(), ids=APART)
def test_parts_that_do_not_belong_together_are_refused(files):
    with pytest.raises(SpecdecError, match="m-0000") as caught:
        from_memory(files, "m-00001-of-00002.gguf")
    assert caught.value.hint


def test_a_split_model_is_read_as_one_and_llama_cpp_loads_it(tmp_path):
    whole, files = read_header(DRAFT), ggufs.split(DRAFT, tmp_path, 7, small_first=True)
    header, readers = read_header(files[0]), list(map(gguf.GGUFReader, files))
    assert len(files) == 4 and not readers[0].tensors and header.name == files[0].name
    assert header.size == sum(path.stat().st_size for path in files)
    offsets = [t.data_offset - reader.data_offset for reader in readers for t in reader.tensors]
    assert header.tensors == tuple(replace(t, offset=at) for t, at in zip(whole.tensors, offsets, strict=True))
    assert repr({k: v for k, v in header.metadata.items() if not k.startswith("split.")}) == repr(whole.metadata)
    texts = [run(PROMPT, "-m", path, "--drafter", "none", "-n", 8) for path in (DRAFT, files[0])]
    assert texts[0].stdout == texts[1].stdout != "", texts[1].stderr
