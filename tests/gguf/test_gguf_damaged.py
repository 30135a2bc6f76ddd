"""What is no model, or claims what no file holds: refused quickly, in little memory, with a reason."""

import io
import struct
import tracemalloc
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import process_time

import ggufs
import pytest
from driver import DEMO, assert_refused, call
from gguf_models import Model
from ggufs import written

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import read_header, read_model
from specdec_cli.gguf.runnable import require_runnable


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
    for n in HUGE:
        yield ggufs.header(n_tensors=n), "tensors"
        yield ggufs.header(n_keys=n), "keys"
        yield ggufs.header(tensors=[ggufs.tensor(shape=(n,))]), ""
    for n, says in (((1 << 16) + 1, "65,537 tensors"), (1 << 16, "middle of a value")):
        yield ggufs.header(n_tensors=n), says
    for n, says in (((1 << 14) + 1, "16,385 metadata keys"), (1 << 14, "middle of a value")):
        yield ggufs.header(n_keys=n), says
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
