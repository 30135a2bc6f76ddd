import io
import struct
import tracemalloc
from pathlib import Path
from time import perf_counter

import gguf
import ggufs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import Header, StringArray, parse_header, read_header

DEMO = Path(__file__).parents[2] / "profiles" / "demo"
TYPE = gguf.GGUFValueType
SCALARS = {
    TYPE.UINT8: [0, 255],
    TYPE.INT8: [-128, 127],
    TYPE.UINT16: [0, 65535],
    TYPE.INT16: [-32768, 32767],
    TYPE.UINT32: [0, 2**32 - 1],
    TYPE.INT32: [-(2**31), 2**31 - 1],
    TYPE.FLOAT32: [0.5, -1e30],
    TYPE.UINT64: [0, 2**64 - 1],
    TYPE.INT64: [-(2**63), 2**63 - 1],
    TYPE.FLOAT64: [0.1, -1e300],
    TYPE.BOOL: [True, False],
    TYPE.STRING: ["", "naïve 😀\n", "x" * 5000],
}


def write_all_types(path: Path, alignment: int | None = None) -> Path:
    """Every value type, alone and in an array, and tensors of several types and ranks."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, values in SCALARS.items():
        for i, value in enumerate(values):
            writer.add_key_value(f"scalar.{kind.name}.{i}", value, kind)
        writer.add_key_value(f"array.{kind.name}", values, TYPE.ARRAY, sub_type=kind)
    rng = np.random.default_rng(0)
    for name, shape, dtype in (
        ("one", (7,), np.float32),
        ("two", (3, 32), np.float16),
        ("four", (2, 3, 1, 8), np.int8),
        ("scalar", (1,), np.float64),
    ):
        writer.add_tensor(name, rng.integers(0, 9, shape).astype(dtype))
    blocks = gguf.quants.quantize(rng.random((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain(value):
    """Values as the gguf package gives them: lists, with text decoded."""
    if isinstance(value, StringArray):
        return [text.decode() for text in value.values]
    return value.tolist() if isinstance(value, np.ndarray) else value


def assert_agrees(path: Path) -> None:
    mine, reference = read_header(path), gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert {name: plain(value) for name, value in mine.metadata.items()} == expected
    assert list(mine.metadata) == list(expected)
    assert mine.version == reference.fields["GGUF.version"].contents()
    assert mine.data_offset == reference.data_offset
    assert [(t.name, list(t.shape), t.type, t.size, t.n_params, mine.data_offset + t.offset) for t in mine.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type.name, t.n_bytes, t.n_elements, t.data_offset)
        for t in reference.tensors
    ]
    assert mine.n_params == sum(t.n_elements for t in reference.tensors)
    assert mine.name == path.name


def refused(path: Path) -> SpecdecError:
    """The error that reading `path` gives: with both lines, quickly, and without much memory."""
    tracemalloc.start()
    started = perf_counter()
    try:
        with pytest.raises(SpecdecError) as caught:
            read_header(path)
        assert perf_counter() - started < 1
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    error = caught.value
    assert str(error).strip() and error.hint.strip()
    assert "\n" not in f"{error}{error.hint}"
    assert path.name in str(error)
    assert error.exit_code == 1
    return error


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> bytes:
    return write_all_types(tmp_path_factory.mktemp("gguf") / "valid.gguf").read_bytes()


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_agrees_with_the_gguf_package(tmp_path, alignment):
    assert_agrees(write_all_types(tmp_path / "all.gguf", alignment))


@pytest.mark.parametrize("name", ["target.gguf", "draft.gguf"])
def test_agrees_on_the_bundled_pair(name):
    assert_agrees(DEMO / name)


@pytest.mark.parametrize("kind", list(gguf.GGML_QUANT_SIZES), ids=lambda kind: kind.name)
def test_knows_the_size_of_every_tensor_type(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name == "Q8_1":
        size = 36  # the package still has two floats where ggml-common.h has two halves
    head = ggufs.header(tensors=[ggufs.tensor("w", (block * 2, 3), kind)])
    path = tmp_path / "typed.gguf"
    path.write_bytes(ggufs.padded(head, b"\0" * (size * 6)))
    assert read_header(path).tensors[0].size == size * 6
    assert read_header(path).tensors[0].type == kind.name
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut short" in str(refused(path))


def test_a_newer_tensor_type_is_named_and_left_to_llama_cpp(tmp_path):
    path = tmp_path / "new.gguf"
    path.write_bytes(ggufs.padded(ggufs.header(tensors=[ggufs.tensor("w", (4,), 900)])))
    assert (read_header(path).tensors[0].type, read_header(path).tensors[0].size) == ("type 900", None)


def test_version_2_and_a_header_without_tensors(tmp_path):
    path = tmp_path / "two.gguf"
    path.write_bytes(ggufs.header([ggufs.strings("tokenizer.ggml.tokens", ["a", "b"])], version=2))
    header = read_header(path)
    assert (header.version, header.tensors, header.architecture, header.n_params) == (2, (), "unknown", 0)


def test_text_that_is_not_utf8_is_kept(tmp_path):
    path = tmp_path / "bytes.gguf"
    path.write_bytes(ggufs.header([ggufs.strings("words", [b"\xff\xfe", b"ok"])]))
    assert read_header(path).metadata["words"].values == [b"\xff\xfe", b"ok"]


def test_nested_arrays_are_read(tmp_path):
    inner = ggufs.array(ggufs.U32, 2, struct.pack("<2I", 1, 2))
    path = tmp_path / "nested.gguf"
    path.write_bytes(ggufs.header([ggufs.key("deep", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 2, inner * 2))]))
    assert [plain(row) for row in read_header(path).metadata["deep"]] == [[1, 2], [1, 2]]


def test_missing_file(tmp_path):
    assert "no file" in str(refused(tmp_path / "missing.gguf"))


def test_folder(tmp_path):
    assert "folder" in str(refused(tmp_path))


def test_unreadable_name(tmp_path):
    assert "cannot read" in str(refused(tmp_path / ("x" * 300)))


@pytest.mark.parametrize("content", [b"PK\x03\x04" + b"\0" * 100, b"{}\n" * 20, b"ggml" + b"\0" * 40, b"\0" * 64])
def test_not_a_gguf(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    assert "not a GGUF" in str(refused(path))


def test_empty_file(tmp_path):
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    refused(path)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GGUF" + struct.pack("<III", 1, 0, 0) + b"\0" * 64, "version 1"),
        (ggufs.header(version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack(">IQQ", 2, 0, 0), "big-endian"),
    ],
)
def test_other_versions(tmp_path, head, says):
    path = tmp_path / "old.gguf"
    path.write_bytes(head)
    assert says in str(refused(path))


def test_every_cut_is_noticed(tmp_path, valid):
    path = tmp_path / "cut.gguf"
    path.write_bytes(valid)
    header = read_header(path)
    last = max(t.size + t.offset for t in header.tensors) + header.data_offset
    for size in {*range(0, 3000), *range(3000, header.data_offset, 97), *range(header.data_offset, last)}:
        path.write_bytes(valid[:size])
        with pytest.raises(SpecdecError) as caught:
            read_header(path)
        assert str(caught.value) and caught.value.hint and path.name in str(caught.value), size
    path.write_bytes(valid[:last])
    assert read_header(path) is not None


def test_a_cut_in_the_data_says_where_the_file_should_end(tmp_path, valid):
    path = tmp_path / "cut.gguf"
    path.write_bytes(valid[:-200])
    error = refused(path)
    assert "cut short" in str(error) and f"{len(valid) - 200:,} bytes" in str(error)
    assert "Download" in error.hint


HUGE = (1 << 31, 1 << 48, 1 << 63, (1 << 64) - 1)
ABSURD = [
    *[(f"{n} tensors", ggufs.header(n_tensors=n), "tensors") for n in HUGE],
    *[(f"{n} keys", ggufs.header(n_keys=n), "keys") for n in HUGE],
    ("more tensors than there are", ggufs.header(n_tensors=100_000), "middle of a value"),
    ("more keys than there are", ggufs.header(n_keys=60_000), "middle of a value"),
    *[
        (
            f"array of {n} of type {kind}",
            ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(kind, n))]),
            "in an array",
        )
        for kind in range(13)
        for n in (1 << 20, (1 << 64) - 1)
    ],
    *[
        (f"a string of {n}", ggufs.header([ggufs.key("s", ggufs.STRING, struct.pack("<Q", n))]), "")
        for n in (1 << 20, *HUGE)
    ],
    *[(f"a key of {n}", ggufs.header([struct.pack("<Q", n)]), "") for n in (1 << 20, *HUGE)],
    *[(f"a tensor's name of {n}", ggufs.header(tensors=[struct.pack("<Q", n)]), "") for n in (1 << 20, *HUGE)],
    *[
        (
            f"a string of {n} in an array",
            ggufs.header(
                [ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.STRING, 2, ggufs.text("x") + struct.pack("<Q", n)))]
            ),
            "string",
        )
        for n in (1 << 20, *HUGE)
    ],
    *[(f"{n} dimensions", ggufs.header(tensors=[ggufs.tensor(n_dims=n)]), "dimensions") for n in (5, 2**32 - 1)],
    *[(f"a side of {n}", ggufs.header(tensors=[ggufs.tensor(shape=(n,))]), "") for n in HUGE],
    ("sides that overflow", ggufs.header(tensors=[ggufs.tensor(shape=(1 << 40,) * 4)]), "values in a tensor"),
    ("a far offset", ggufs.header(tensors=[ggufs.tensor(shape=(1,), offset=(1 << 64) - 1)]), "cut short"),
    *[(f"value type {k}", ggufs.header([ggufs.key("v", k, b"\0" * 64)]), "unknown type") for k in (13, 255, 2**32 - 1)],
    *[
        (f"array type {k}", ggufs.header([ggufs.key("v", ggufs.ARRAY, ggufs.array(k, 1, b"\0" * 64))]), "unknown type")
        for k in (13, 255, 2**32 - 1)
    ],
    *[
        (f"arrays {depth} deep", ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1) * depth)]), "")
        for depth in (6, 100, 5000)
    ],
    *[
        (f"alignment {value!r}", ggufs.header([ggufs.key("general.alignment", kind, payload)]), "alignment")
        for value, kind, payload in (
            (0, ggufs.U32, struct.pack("<I", 0)),
            (3, ggufs.U32, struct.pack("<I", 3)),
            (48, ggufs.U32, struct.pack("<I", 48)),
            (2**31, ggufs.U32, struct.pack("<I", 2**31)),
            (-32, 5, struct.pack("<i", -32)),
            (2**63, 10, struct.pack("<Q", 2**63)),
            (32.0, 6, struct.pack("<f", 32.0)),
            ("32", ggufs.STRING, ggufs.text("32")),
            (True, ggufs.BOOL, b"\1"),
            ([32], ggufs.ARRAY, ggufs.array(ggufs.U32, 1, struct.pack("<I", 32))),
        )
    ],
]


@pytest.mark.parametrize(("head", "says"), [case[1:] for case in ABSURD], ids=[case[0] for case in ABSURD])
def test_absurd_claims_are_refused(tmp_path, head, says):
    path = tmp_path / "absurd.gguf"
    # Enough bytes after the header that its end alone does not give it away.
    path.write_bytes(head + b"" if "middle" in says else ggufs.padded(head, b"\xff" * 4096))
    assert says in str(refused(path))


def test_a_sparse_giant_is_refused_without_reading_it(tmp_path):
    """The file is as large as the header claims, so only a limit of our own can stop this."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(ggufs.header([ggufs.key("s", ggufs.STRING, struct.pack("<Q", 1 << 39))]))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    refused(path)


EVIL = st.sampled_from([0, 1, 0x7F, 0xFF, 1 << 16, 1 << 31, 1 << 32, 1 << 48, 1 << 63, (1 << 64) - 1])


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    bytes_=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=8),
    words=st.lists(st.tuples(st.integers(0, 1 << 20), EVIL), max_size=3),
    cut=st.none() | st.integers(0, 1 << 20),
)
def test_a_damaged_file_gives_a_header_or_an_error(bytes_, words, cut):
    raw = bytearray(SMALL)
    for at, value in bytes_:
        raw[at % len(raw)] = value
    for at, value in words:
        struct.pack_into("<Q", raw, at % (len(raw) - 8), value)
    if cut is not None:
        del raw[cut % len(raw) :]
    try:
        header = parse_header(io.BytesIO(raw), "damaged.gguf", len(raw))
    except SpecdecError as error:
        assert str(error) and error.hint
    else:
        assert isinstance(header, Header)
        assert all(value.values for value in header.metadata.values() if isinstance(value, StringArray) and value.count)


SMALL = ggufs.padded(
    ggufs.header(
        [
            ggufs.key("general.architecture", ggufs.STRING, ggufs.text("llama")),
            ggufs.key("general.alignment", ggufs.U32, struct.pack("<I", 32)),
            ggufs.key("flag", ggufs.BOOL, b"\1"),
            ggufs.key("rate", 12, struct.pack("<d", 0.5)),
            ggufs.strings("tokenizer.ggml.tokens", ["<s>", "a", "bc", "", "😀"]),
            ggufs.integers("tokenizer.ggml.token_type", [3, 1, 1, 1, 1]),
            ggufs.key("nested", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1, ggufs.array(ggufs.BOOL, 3, b"\0\1\0"))),
        ],
        [ggufs.tensor("a.weight", (4, 2)), ggufs.tensor("b.weight", (32,), kind=8, offset=32)],
    ),
    b"\0" * 66,
)
