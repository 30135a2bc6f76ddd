"""Headers as the gguf package reads them."""

import sys
from pathlib import Path

import gguf
import ggufs
import numpy as np
import pytest
from ggufs import TYPE, write_all_types, written

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import StringArray
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable

DEMO = Path(__file__).parents[2] / "profiles" / "demo"
LITTLE, BIG = gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG
FOREIGN = BIG if sys.byteorder == "little" else LITTLE


def plain(value):
    """Values as the gguf package gives them: lists, with text decoded and arrays in arrays laid out flat."""
    if isinstance(value, StringArray):
        return [text.decode() for text in value.values]
    if isinstance(value, list):
        return [item for row in value for item in plain(row)]
    return value.tolist() if isinstance(value, np.ndarray) else value


def arrays(value) -> list[np.ndarray]:
    """The arrays of numbers in a value."""
    if isinstance(value, list):
        return [array for row in value for array in arrays(row)]
    return [value] if isinstance(value, np.ndarray) else []


def as_version_2(path: Path) -> Path:
    """The package writes version 3 alone; the two differ in this number, since 3 merely allows big-endian files."""
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + raw[4:8].replace(b"\3", b"\2") + raw[8:])
    return path


def assert_agrees(path: Path) -> None:
    mine, reference = read_header(path), gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert {name: plain(value) for name, value in mine.metadata.items()} == expected
    assert list(mine.metadata) == list(expected)
    assert mine.version == reference.fields["GGUF.version"].contents()
    assert mine.order == reference.endianess.name.lower()
    for name, value in mine.metadata.items():
        kind = reference.fields[name].types[-1]
        dtype = np.dtype(np.uint8 if kind == TYPE.BOOL else reference.gguf_scalar_to_np.get(kind, np.void))
        assert all(array.dtype == dtype and array.dtype.isnative for array in arrays(value)), name
    assert mine.data_offset == reference.data_offset
    assert [(t.name, list(t.shape), t.type, t.size, t.n_params, mine.data_offset + t.offset) for t in mine.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type.name, t.n_bytes, t.n_elements, t.data_offset)
        for t in reference.tensors
    ]
    assert mine.n_params == sum(t.n_elements for t in reference.tensors)
    assert (mine.name, mine.size) == (path.name, path.stat().st_size)


@pytest.mark.parametrize("order", [LITTLE, BIG], ids=lambda order: order.name)
@pytest.mark.parametrize("alignment", [None, 4096])
def test_agrees_with_the_gguf_package(tmp_path, alignment, order):
    path = write_all_types(tmp_path / "all.gguf", alignment, order)
    assert_agrees(path)
    assert_agrees(as_version_2(path))
    assert read_header(path).version == 2


def test_the_other_byte_order_is_read_but_not_run(tmp_path):
    header = read_header(write_all_types(tmp_path / "all.gguf", order=FOREIGN))
    with pytest.raises(SpecdecError, match=f"all.gguf was made for {FOREIGN.name.lower()}-endian machines") as caught:
        require_runnable(header)
    assert f"this one is {sys.byteorder}-endian" in str(caught.value) and "convert" in caught.value.hint


@pytest.mark.parametrize("name", ["target.gguf", "draft.gguf"])
def test_agrees_on_the_bundled_pair(name):
    assert_agrees(DEMO / name)
    header = read_header(DEMO / name)
    assert header.quantisation == "Q8_0" and header.n_active_params == header.n_params
    require_runnable(header)


@pytest.mark.parametrize("kind", list(gguf.GGML_QUANT_SIZES), ids=lambda kind: kind.name)
def test_knows_the_size_of_every_tensor_type(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name == "Q8_1":
        size = 36  # the package still has two floats where ggml-common.h has two halves
    head = ggufs.header(tensors=[ggufs.tensor("w", (block * 2, 3), kind)])
    path = written(tmp_path, ggufs.padded(head, b"\0" * (size * 6)))
    tensor = read_header(path).tensors[0]
    assert (tensor.size, tensor.type) == (size * 6, kind.name)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpecdecError, match="cut short"):
        read_header(path)


def test_a_newer_tensor_type_is_named_and_left_to_llama_cpp(tmp_path):
    raw = ggufs.padded(ggufs.header(tensors=[ggufs.tensor("w", (4,), 900)]))
    tensor = read_header(written(tmp_path, raw)).tensors[0]
    assert (tensor.type, tensor.size) == ("type 900", None)


def test_a_header_without_tensors_and_text_that_is_not_utf8(tmp_path):
    header = read_header(written(tmp_path, ggufs.header([ggufs.strings("words", [b"\xff\xfe", b"ok"])], version=2)))
    assert (header.version, header.tensors, header.architecture, header.n_params) == (2, (), "unknown", 0)
    assert header.metadata["words"].values == [b"\xff\xfe", b"ok"]
