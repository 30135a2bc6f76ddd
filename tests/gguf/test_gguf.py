"""Headers as the gguf package reads them; what is no model or claims what no file holds is refused, with a reason."""

import io
import struct
import sys
import tracemalloc
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import process_time

import gguf
import ggufs
import numpy as np
import pytest
from driver import DEMO, assert_refused, call
from gguf_models import Model
from ggufs import TYPE, write_all_types, written

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import TYPES, StringArray
from specdec_cli.gguf.reader import read_header, read_model
from specdec_cli.gguf.runnable import require_runnable

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


def test_knows_the_size_of_every_tensor_type():
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    sizes[9] = ("Q8_1", 32, 36)  # the package still has two floats where ggml-common.h has two halves
    assert sizes.items() <= TYPES.items()


def test_a_newer_tensor_type_no_tensors_and_text_that_is_not_utf8(tmp_path):
    (tensor,) = read_header(written(tmp_path, ggufs.header(tensors=[ggufs.tensor("w", (4,), 900)]))).tensors
    assert (tensor.type, tensor.size) == ("type 900", None), "left to llama.cpp"
    header = read_header(written(tmp_path, ggufs.header([ggufs.strings("words", [b"\xff\xfe", b"ok"])], version=2)))
    assert (header.version, header.tensors, header.architecture, header.n_params) == (2, (), "unknown", 0)
    assert header.metadata["words"].values == [b"\xff\xfe", b"ok"]


# What is no model, or claims what no file holds


def refused(path: Path) -> SpecdecError:
    """The error that reading `path` gives: with both lines, quickly, and without much memory."""
    tracemalloc.start()
    started = process_time()
    try:
        with pytest.raises(SpecdecError) as caught:
            read_header(path)
        assert process_time() - started < 1 and tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    error = caught.value
    assert path.name in str(error) and error.hint and "\n" not in f"{error}{error.hint}" and error.exit_code == 1
    return error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *[(b, "not a GGUF") for b in (b"PK\x03\x04" + b"\0" * 100, b"\0" * 64)],
        (b"", "middle of a value"),
        (b"GGUF" + struct.pack("<III", 1, 0, 0) + b"\0" * 64, "version 1"),
        *[(ggufs.header(version=n), f"version {n}") for n in (4, 0x0203)],
        (b"GGUF" + struct.pack(">IQQ", 4, 0, 0), "version"),
    ],
)
def test_other_files_and_versions_are_refused(tmp_path, content, says):
    assert says in str(refused(written(tmp_path, content)))


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing.gguf", "no file"), ("", "folder"), ("x" * 300, "cannot read"), ("a\0b", "not a path")],
)
def test_a_path_that_cannot_be_read(tmp_path, name, says):
    with pytest.raises(SpecdecError, match=says) as caught:
        read_header(tmp_path / name)
    assert caught.value.hint
    with pytest.raises(SpecdecError, match="is not a path"):
        read_header(Path())


def test_every_cut_is_noticed(tmp_path):
    valid = ggufs.write_all_types(tmp_path / "valid.gguf").read_bytes()
    path = written(tmp_path, valid)
    header = read_header(path)
    last = max(t.size + t.offset for t in header.tensors) + header.data_offset
    ends = {end for start, size, _ in ggufs.layout(valid).numbers for end in (start, start + size - 1)}
    for size in {*range(30), *ends, header.data_offset, last - 1}:
        path.write_bytes(valid[:size])
        with pytest.raises(SpecdecError, match=path.name) as caught:
            read_header(path)
        assert caught.value.hint, size
        assert size < header.data_offset or f"cut short: {size:,} bytes" in str(caught.value)
    path.write_bytes(valid[:last])
    assert read_header(path) is not None


HUGE = (1 << 31, 1 << 63, (1 << 64) - 1)
LONG = (1 << 20, *HUGE)


def absurd():
    """Headers that claim what no file holds, and a part of what is said of them."""
    length = partial(ggufs.pack, ggufs.U64)
    for what, most, says in (("n_tensors", 1 << 16, "65,537 tensors"), ("n_keys", 1 << 14, "16,385 metadata keys")):
        yield from ((ggufs.header(**{what: n}), says.split()[-1]) for n in HUGE)
        yield ggufs.header(**{what: most + 1}), says
        yield ggufs.header(**{what: most}), "middle of a value"
    for n in HUGE:
        yield ggufs.header(tensors=[ggufs.tensor(shape=(n,))]), ""
    for kind in range(13):
        for n in (1 << 20, (1 << 64) - 1):
            yield ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(kind, n))]), "in an array"
    for n in LONG:
        yield ggufs.header([ggufs.key("s", ggufs.STRING, length(n))]), ""
        yield ggufs.header([length(n)]), ""
        yield ggufs.header(tensors=[length(n)]), ""
        second = ggufs.array(ggufs.STRING, 2, ggufs.text("x") + length(n))
        yield ggufs.header([ggufs.key("a", ggufs.ARRAY, second)]), "string"
    for n in (5, 2**32 - 1):
        yield ggufs.header(tensors=[ggufs.tensor(n_dims=n)]), "dimensions"
    yield ggufs.header(tensors=[ggufs.tensor(shape=(1 << 40,) * 4)]), "values in a tensor"
    yield ggufs.header(tensors=[ggufs.tensor(shape=(1,), offset=(1 << 64) - 1)]), "cut short"
    for kind in (13, 2**32 - 1):
        yield ggufs.header([ggufs.key("v", kind, b"\0" * 64)]), "unknown type"
        yield ggufs.header([ggufs.key("v", ggufs.ARRAY, ggufs.array(kind, 1, b"\0" * 64))]), "unknown type"
    for depth in (6, 5000):
        yield ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1) * depth)]), ""
    for kind, value in (
        *[(ggufs.U32, n) for n in (0, 48, 2**31)],
        *[(ggufs.I32, -32), (ggufs.F32, 32.0), (ggufs.STRING, "32"), (ggufs.BOOL, True)],
    ):
        yield ggufs.header([ggufs.scalar("general.alignment", kind, value)]), "alignment"
    yield ggufs.header([ggufs.values("general.alignment", ggufs.U32, [32])]), "alignment"


@pytest.mark.parametrize(("head", "says"), list(absurd()))
def test_absurd_claims_are_refused(tmp_path, head, says):
    # Enough bytes after the header that its end alone does not give it away.
    assert says in str(refused(written(tmp_path, head if "middle" in says else ggufs.padded(head, b"\xff" * 4096))))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (ggufs.STRING, ggufs.pack(ggufs.U64, 1 << 39)),
        (ggufs.ARRAY, ggufs.array(ggufs.STRING, 1 << 30)),  # each claim is modest, but not what they add up to
        (ggufs.ARRAY, ggufs.array(ggufs.U8, 1 << 39)),
    ],
)
def test_a_sparse_giant_is_refused_without_reading_it(tmp_path, kind, payload):
    """The file is as large as the header claims, so only a limit of our own can stop this."""
    path = written(tmp_path, ggufs.header([ggufs.key("s", kind, payload)]))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    refused(path)


def test_a_file_that_ends_while_it_is_read():
    """Shorter than its size was said to be."""
    with pytest.raises(SpecdecError, match="ends in the middle of a value"):
        read_model("m.gguf", lambda _: nullcontext((io.BytesIO(b"GGUF\3\0"), 1000)))


@pytest.mark.parametrize("deep", [False, True])
def test_arrays_in_arrays_add_up(tmp_path, deep):
    """Each is within its bound, but every twelve bytes of the file would become an array: over 100 MB of 12."""
    rows = ggufs.array(ggufs.ARRAY, 1 << 16, ggufs.array(ggufs.U32, 0) * (1 << 16))
    keys = [ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 16, rows * 16))]
    path = written(tmp_path, ggufs.header(keys if deep else [ggufs.key(f"a{i}", ggufs.ARRAY, rows) for i in (1, 2)]))
    with pytest.raises(SpecdecError):
        read_header(path)


def test_a_giant_value_is_not_quoted(tmp_path):
    """What a header says of itself may be megabytes; a message about it must be read by a person."""
    long = "x" * (1 << 20)
    for head in (
        ggufs.header(tensors=[ggufs.tensor(long, (1 << 30,))]),
        ggufs.header([ggufs.strings("general.alignment", [long])]),
    ):
        assert len(str(refused(written(tmp_path, ggufs.padded(head))))) < 500
    for key in (
        ggufs.scalar("general.architecture", ggufs.STRING, f"bert{long}"),
        ggufs.strings("unknown.block_count", [long]),
        ggufs.scalar("epsilon", ggufs.STRING, long),
        ggufs.scalar(f"{long}epsilon", ggufs.F32, -1),
    ):
        with pytest.raises(SpecdecError) as caught:
            require_runnable(read_header(written(tmp_path, ggufs.header([key]))))
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("key", "array"),
    [
        ("medusa.embedding_length", ggufs.array(ggufs.U32, 0)),
        ("medusa.heads", ggufs.array(ggufs.U32, 1, ggufs.pack(ggufs.U32, 1))),
        ("eagle3.target_hidden_size", ggufs.array(ggufs.STRING, 2, ggufs.pack(ggufs.STRING, "a", "b"))),
    ],
)
def test_arrays_where_heads_have_numbers(tmp_path, key, array):
    kind = key.partition(".")[0]
    model = Model((DEMO / f"{kind}.gguf").read_bytes())
    model.keys[key.encode()] = struct.pack("<I", ggufs.ARRAY) + array
    path = written(tmp_path, model.raw())
    done = call("run", "-m", DEMO / "target.gguf", "-md", path, "--drafter", kind, "-n", 2, "x")
    assert_refused(done, 1, "m.gguf is damaged")
