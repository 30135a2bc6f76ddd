import io
import struct
import sys
import tracemalloc
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import gguf
import ggufs
import numpy as np
import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.models.gguf import parse_header, read_header
from specdec_cli.models.gguf_header import Header, StringArray, Tensor, require_runnable

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


LITTLE, BIG = gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG
FOREIGN = BIG if sys.byteorder == "little" else LITTLE


def write_all_types(path: Path, alignment: int | None = None, order: gguf.GGUFEndian = LITTLE) -> Path:
    """Every value type, alone, in an array and in arrays of arrays, and tensors of several types and ranks."""
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, values in SCALARS.items():
        for i, value in enumerate(values):
            writer.add_key_value(f"scalar.{kind.name}.{i}", value, kind)
        writer.add_key_value(f"array.{kind.name}", values, TYPE.ARRAY, sub_type=kind)
    writer.add_key_value("nested.numbers", [[1, -2, 3], [-4]], TYPE.ARRAY)
    writer.add_key_value("nested.rates", [[0.5], [1.5, 2.5]], TYPE.ARRAY)
    writer.add_key_value("nested.flags", [[True], [False, True]], TYPE.ARRAY)
    writer.add_key_value("deeper", [[[1, 2], [3]], [[4]]], TYPE.ARRAY)
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
    assert mine.name == path.name
    assert mine.size == path.stat().st_size


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


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("order", [LITTLE, BIG], ids=lambda order: order.name)
@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_agrees_with_the_gguf_package(tmp_path, alignment, order):
    path = write_all_types(tmp_path / "all.gguf", alignment, order)
    assert_agrees(path)
    assert_agrees(as_version_2(path))
    assert read_header(path).version == 2


def test_both_byte_orders_say_the_same(tmp_path):
    little, big = (
        read_header(write_all_types(tmp_path / f"{order.name}.gguf", order=order)) for order in (LITTLE, BIG)
    )
    assert (little.order, big.order) == ("little", "big")
    assert little.tensors == big.tensors and list(little.metadata) == list(big.metadata)
    for name, value in little.metadata.items():
        assert plain(value) == plain(big.metadata[name]), name
        for mine, other in zip(arrays(value), arrays(big.metadata[name]), strict=True):
            assert mine.dtype == other.dtype and (mine == other).all()


def test_the_other_byte_order_is_read_but_not_run(tmp_path):
    header = read_header(write_all_types(tmp_path / "all.gguf", order=FOREIGN))
    with pytest.raises(SpecdecError, match=f"all.gguf was made for {FOREIGN.name.lower()}-endian machines") as caught:
        require_runnable(header)
    assert f"this one is {sys.byteorder}-endian" in str(caught.value) and "convert" in caught.value.hint


@pytest.mark.parametrize("name", ["target.gguf", "draft.gguf"])
def test_agrees_on_the_bundled_pair(name):
    assert_agrees(DEMO / name)


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
    assert "cut short" in str(refused(path))


def test_a_newer_tensor_type_is_named_and_left_to_llama_cpp(tmp_path):
    raw = ggufs.padded(ggufs.header(tensors=[ggufs.tensor("w", (4,), 900)]))
    tensor = read_header(written(tmp_path, raw)).tensors[0]
    assert (tensor.type, tensor.size) == ("type 900", None)


def test_a_header_without_tensors_and_text_that_is_not_utf8(tmp_path):
    header = read_header(written(tmp_path, ggufs.header([ggufs.strings("words", [b"\xff\xfe", b"ok"])], version=2)))
    assert (header.version, header.tensors, header.architecture, header.n_params) == (2, (), "unknown", 0)
    assert header.metadata["words"].values == [b"\xff\xfe", b"ok"]


def test_nested_arrays_are_read(tmp_path):
    inner = ggufs.array(ggufs.U32, 2, ggufs.pack(ggufs.U32, 1, 2))
    raw = ggufs.header([ggufs.key("deep", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 2, inner * 2))])
    for each in (raw, ggufs.swapped(raw)):
        assert [plain(row) for row in read_header(written(tmp_path, each)).metadata["deep"]] == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *[(b, "not a GGUF") for b in (b"PK\x03\x04" + b"\0" * 100, b"{}\n" * 20, b"ggml" + b"\0" * 40, b"\0" * 64)],
        (b"", "middle of a value"),
        (b"GGUF" + struct.pack("<III", 1, 0, 0) + b"\0" * 64, "version 1"),
        *[(ggufs.header(version=n), f"version {n}") for n in (0, 4, 0x0203)],
        *[(b"GGUF" + struct.pack(">IQQ", n, 0, 0), "version") for n in (1, 4)],
    ],
)
def test_other_files_and_versions_are_refused(tmp_path, content, says):
    assert says in str(refused(written(tmp_path, content)))


@pytest.mark.parametrize(("name", "says"), [("missing.gguf", "no file"), ("", "folder"), ("x" * 300, "cannot read")])
def test_a_path_that_cannot_be_read(tmp_path, name, says):
    assert says in str(refused(tmp_path / name))


@pytest.mark.parametrize("path", [Path(), Path("a\0b.gguf")])
def test_no_path(path):
    with pytest.raises(SpecdecError, match="is no path"):
        read_header(path)


def test_every_cut_is_noticed(tmp_path):
    valid = write_all_types(tmp_path / "valid.gguf").read_bytes()
    path = written(tmp_path, valid)
    header = read_header(path)
    last = max(t.size + t.offset for t in header.tensors) + header.data_offset
    ends = {end for start, size, _ in ggufs.layout(valid).numbers for end in (start, start + size - 1)}
    for size in {*range(30), *ends, header.data_offset, *range(header.data_offset, last, 7), last - 1}:
        path.write_bytes(valid[:size])
        with pytest.raises(SpecdecError, match=path.name) as caught:
            read_header(path)
        assert caught.value.hint, size
        assert size < header.data_offset or f"cut short: {size:,} bytes" in str(caught.value)
    path.write_bytes(valid[:last])
    assert read_header(path) is not None


HUGE = (1 << 31, 1 << 48, 1 << 63, (1 << 64) - 1)
LONG = (1 << 20, *HUGE)


def absurd():
    """Headers that claim what no file holds, and a part of what is said of them."""
    length = partial(ggufs.pack, ggufs.U64)
    for n in HUGE:
        yield ggufs.header(n_tensors=n), "tensors"
        yield ggufs.header(n_keys=n), "keys"
        yield ggufs.header(tensors=[ggufs.tensor(shape=(n,))]), ""
    yield ggufs.header(n_tensors=100_000), "100,000 tensors"
    yield ggufs.header(n_keys=60_000), "60,000 metadata keys"
    yield ggufs.header(n_tensors=1 << 16), "middle of a value"
    yield ggufs.header(n_keys=1 << 14), "middle of a value"
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
    for kind in (13, 255, 2**32 - 1):
        yield ggufs.header([ggufs.key("v", kind, b"\0" * 64)]), "unknown type"
        yield ggufs.header([ggufs.key("v", ggufs.ARRAY, ggufs.array(kind, 1, b"\0" * 64))]), "unknown type"
    for depth in (6, 100, 5000):
        yield ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 1) * depth)]), ""
    for kind, value in (
        *[(ggufs.U32, n) for n in (0, 3, 48, 2**31)],
        *[(ggufs.I32, -32), (ggufs.U64, 2**63), (ggufs.F32, 32.0), (ggufs.STRING, "32"), (ggufs.BOOL, True)],
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
        parse_header(io.BytesIO(b"GGUF\3\0"), "m.gguf", 1000)


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
    alignment, architecture = "general.alignment", "general.architecture"
    for head in (
        ggufs.header(tensors=[ggufs.tensor(long, (1 << 30,))]),
        ggufs.header([ggufs.scalar(alignment, ggufs.STRING, long)]),
        ggufs.header([ggufs.strings(alignment, [long])]),
    ):
        assert len(str(refused(written(tmp_path, ggufs.padded(head))))) < 500
    llama = ggufs.scalar(architecture, ggufs.STRING, "llama")
    for keys in (
        [ggufs.scalar(architecture, ggufs.STRING, f"bert{long}")],
        [llama, ggufs.strings("llama.block_count", [long])],
        [llama, ggufs.scalar("llama.epsilon", ggufs.STRING, long)],
        [llama, ggufs.scalar(f"{long}epsilon", ggufs.F32, -1)],
    ):
        with pytest.raises(SpecdecError) as caught:
            require_runnable(read_header(written(tmp_path, ggufs.header(keys))))
        assert len(str(caught.value)) < 500


def test_a_large_vocabulary_takes_no_time(tmp_path):
    """Sizes and lengths as in Qwen2.5."""
    tokens = [f"Ġtoken{i}"[: 3 + i % 9] for i in range(151_936)]
    head = ggufs.header(
        [
            ggufs.strings("tokenizer.ggml.tokens", tokens),
            ggufs.values("tokenizer.ggml.token_type", ggufs.U32, [1] * len(tokens)),
            ggufs.strings("tokenizer.ggml.merges", [f"{a} {b}" for a, b in pairwise(tokens)]),
        ],
        [ggufs.tensor(f"blk.{i}.weight", (0,)) for i in range(339)],
    )
    path, taken = written(tmp_path, ggufs.padded(head)), []
    for _ in range(3):
        started = perf_counter()
        header = read_header(path)
        taken.append(perf_counter() - started)
    assert header.metadata["tokenizer.ggml.tokens"].count == len(tokens)
    assert header.metadata["tokenizer.ggml.merges"].values[-1].decode() == f"{tokens[-2]} {tokens[-1]}"
    assert len(header.tensors) == 339
    assert median(taken) < 0.5


# --- what a header says ------------------------------------------------------------------------------------------


def model(*tensors: tuple[str, tuple[int, ...], str], **metadata) -> Header:
    rows = tuple(Tensor(name, shape, kind, 0, 2 * int(np.prod(shape))) for name, shape, kind in tensors)
    return Header("m.gguf", 3, {"general.architecture": "moe", **metadata}, rows, 0)


MIXTURE = (
    ("token_embd.weight", (8, 100), "F16"),
    ("blk.0.ffn_gate_inp.weight", (8, 16), "F32"),  # the router is always at work, and so is a shared expert
    ("blk.0.ffn_up_shexp.weight", (8, 4), "F16"),
    ("blk.0.ffn_up_exps.weight", (8, 4, 16), "Q8_0"),
    ("blk.0.ffn_down_exps.weight", (4, 8, 16), "Q8_0"),
    ("blk.0.ffn_up_exps.bias", (4, 16), "F32"),
)
ALL, ROUTED = 800 + 128 + 32 + 512 + 512 + 64, 512 + 512 + 64


def test_of_a_mixture_of_experts_only_those_in_use_are_active():
    header = model(*MIXTURE, **{"moe.expert_count": 16, "moe.expert_used_count": 2})
    assert header.n_params == ALL
    assert header.n_active_params == ALL - ROUTED + ROUTED * 2 // 16
    assert model(*MIXTURE[:3]).n_active_params == 960


@pytest.mark.parametrize(
    ("count", "used"),
    [(16, 16), (0, 0), (16, 0), (0, 2), (2, 16), (-16, -2), (None, 2), (16, None), ("16", 2), (16, 2.0)],
)
def test_without_usable_counts_of_experts_all_are_active(count, used):
    counts = {"moe.expert_count": count, "moe.expert_used_count": used}
    header = model(*MIXTURE, **{key: value for key, value in counts.items() if value is not None})
    assert header.n_active_params == header.n_params == ALL


@pytest.mark.parametrize("kind", list(gguf.LlamaFileType), ids=lambda kind: kind.name)
def test_knows_the_name_of_every_file_type(kind):
    """By the package's enumeration, whose names are these with a prefix."""
    header = model(("w", (4,), "F64"), **{"general.file_type": int(kind)})
    name = kind.name.removeprefix("ALL_").removeprefix("MOSTLY_")
    assert header.quantisation == ("F64" if name == "GUESSED" else name.removesuffix("_MOE"))


@pytest.mark.parametrize("kind", [-1, 4, 99999, "Q8_0", 7.0, True, None])
def test_without_a_known_file_type_the_bytes_decide(kind):
    rows = [("a", (10,), "F32"), ("b", (10,), "F32"), ("c", (50,), "Q6_K")]
    assert model(*rows, **{"general.file_type": kind}).quantisation == "Q6_K"
    assert model(*rows[:2], **{"general.file_type": kind}).quantisation == "F32"
    assert model(**{"general.file_type": kind}).quantisation == "unknown"


def test_a_type_of_unknown_size_has_no_say():
    header = Header("m.gguf", 3, {}, (Tensor("a", (99,), "type 900", 0, None), Tensor("b", (1,), "F16", 0, 2)), 0)
    assert header.quantisation == "F16"


@pytest.mark.parametrize("name", ["target.gguf", "draft.gguf"])
def test_what_the_bundled_pair_says_of_itself(name):
    header = read_header(DEMO / name)
    assert (header.quantisation, header.order) == ("Q8_0", sys.byteorder)
    assert header.n_active_params == header.n_params == sum(tensor.n_params for tensor in header.tensors)
    require_runnable(header)
