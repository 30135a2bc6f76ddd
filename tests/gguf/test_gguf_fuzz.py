"""Damaged headers, made at random: each gives a header or an error, soon and in little memory, and so does its use.

`make test` tries a few hundred, `make fuzz` 20,000; the same ones for a seed.
"""

import io
import os
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import ggufs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.gguf.memory import cache_bytes, footprint
from specdec_cli.gguf.reader import read_model
from specdec_cli.gguf.runnable import require_runnable
from specdec_cli.gguf.tokenizer_comparison import compare

# Read here, not in a test: tests run without specdec's own settings.
SCALE = os.environ.get("SPECDEC_FUZZ_SCALE")
SECONDS, BYTES = 1, 64 << 20

FIRST, SECOND = "base-00001-of-00002.gguf", "base-00002-of-00002.gguf"


def split(no: int) -> list[bytes]:
    numbers = (("split.no", ggufs.U16, no), ("split.count", ggufs.U16, 2), ("split.tensors.count", ggufs.I32, 3))
    return [ggufs.scalar(*number) for number in numbers]


def base(*more: bytes) -> bytes:
    """A mixture of experts with a tokenizer, and with a value of every other type."""
    flags = ggufs.array(ggufs.BOOL, 3, b"\0\1\0")
    words = ggufs.array(ggufs.STRING, 2, ggufs.pack(ggufs.STRING, "", "x\ny"))
    counts = {"block_count": 2, "context_length": 64, "embedding_length": 8, "attention.head_count": 4}
    counts |= {"attention.key_length": 2, "expert_count": 4, "expert_used_count": 2}
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
    tokens = {"unknown": 0, "bos": 1, "eos": 2}
    keys = [
        *[ggufs.scalar(name, ggufs.STRING, value) for name, value in texts.items()],
        *[ggufs.scalar(f"llama.{name}", ggufs.U32, value) for name, value in counts.items()],
        *[ggufs.scalar(f"tokenizer.ggml.{name}_token_id", ggufs.U32, token) for name, token in tokens.items()],
        *[ggufs.scalar(f"general.{name}", ggufs.U32, value) for name, value in (("alignment", 32), ("file_type", 7))],
        *[
            ggufs.key(f"scalar.{kind}", kind, bytes(range(1, 9))[: ggufs.SIZES[kind]])
            for kind in (ggufs.U8, ggufs.I8, ggufs.U16, ggufs.I16, ggufs.U64, ggufs.I64)
        ],
        ggufs.values("llama.attention.head_count_kv", ggufs.U32, [2, 1]),
        ggufs.scalar("llama.attention.layer_norm_rms_epsilon", ggufs.F32, 1e-6),
        ggufs.scalar("llama.attention.causal", ggufs.BOOL, True),
        ggufs.scalar("scalar.rate", ggufs.F64, 0.5),
        ggufs.strings("tokenizer.ggml.tokens", ["<unk>", "<s>", "</s>", "a", "b", "ab", b"\xff", "😀", "", "[PAD9]"]),
        ggufs.values("tokenizer.ggml.token_type", ggufs.I32, [2, 3, 3, *[1] * 6, 5]),
        ggufs.strings("tokenizer.ggml.merges", ["a b", "b a"]),
        ggufs.scalar("tokenizer.ggml.add_bos_token", ggufs.BOOL, True),
        ggufs.key("nested.flags", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 2, flags * 2)),
        ggufs.key("nested.words", ggufs.ARRAY, ggufs.array(ggufs.ARRAY, 2, ggufs.array(ggufs.ARRAY, 1, words) * 2)),
        *more,
    ]
    tensors = [
        ggufs.tensor("a.weight", (4, 2)),
        ggufs.tensor("a_exps.weight", (4, 2, 4), offset=32),
        ggufs.tensor("b.weight", (32,), kind=8, offset=160),
    ]
    return ggufs.padded(ggufs.header(keys, tensors[: 2 if more else 3]), b"\0" * 224)


LAST = ggufs.padded(ggufs.header(split(1), [ggufs.tensor("b.weight", (32,), kind=8)]), b"\0" * 64)
WHOLE, SPLIT = base(), base(*split(0))
BASES = {
    "whole": (WHOLE, LAST),
    "version 2": (WHOLE[:4] + b"\2" + WHOLE[5:], LAST),
    "big-endian": (ggufs.swapped(WHOLE), LAST),
    "first part": (SPLIT, LAST),
    "big-endian first part": (ggufs.swapped(SPLIT), ggufs.swapped(LAST)),
    "second part": (LAST, SPLIT),
}

NUMBERS = [*range(14), 31, 32, 0x7F800000, 0x7FC00000, 0x7FF8 << 48]  # the last three: infinity, and not numbers
NUMBERS += [bound for power in (7, 8, 14, 16, 20, 31, 32, 40, 48, 63, 64) for bound in ((1 << power) - 1, 1 << power)]
EVIL = st.sampled_from(NUMBERS) | st.integers(0, (1 << 64) - 1)
PLACE = st.integers(0, 1 << 14)


def valued() -> Iterator[bytes]:
    """Well-formed values of every kind, alone and in arrays, with their types, to stand where another is expected."""
    whole = ggufs.BOOL, ggufs.I32, ggufs.U64
    kinds = {
        **{kind: [byte * ggufs.SIZES[kind] for byte in (b"\0", b"\1", b"\xff")] for kind in whole},
        ggufs.F32: [ggufs.pack(ggufs.F32, value) for value in (0.5, -1e30, float("inf"), float("nan"))],
        ggufs.STRING: [ggufs.text(value) for value in ("", "llama", b"\xff\xfe", "\x1b[2J\n", "1")],
        ggufs.ARRAY: [ggufs.array(ggufs.I32, 1, b"\1\0\0\0"), ggufs.array(ggufs.STRING, 1, ggufs.text("a"))],
    }
    for kind, items in kinds.items():
        yield from (struct.pack("<I", kind) + item for item in items)
        for count in (0, 1, 12):
            yield struct.pack("<I", ggufs.ARRAY) + ggufs.array(kind, count, items[-1] * count)


VALUES = list(valued())


def set_numbers(raw: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """Other counts, lengths, types, sides, offsets and values, where they really are."""
    new, numbers, order = bytearray(raw), ggufs.layout(raw).numbers, "little" if raw[4] else "big"
    for role, place, value in changes:
        fitting = [number for number in numbers if number.role == role]
        if fitting:
            at, size, _ = fitting[place % len(fitting)]
            new[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)
    return bytes(new)


ROLES = ["version", "count", "length", "type", "side", "offset", "value"]


def splice(raw: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Other bytes where some were, or none."""
    for place, length, new in changes:
        start = place % (len(raw) or 1)
        raw = raw[:start] + new + raw[start + length :]
    return raw


# A flipped or a lost byte, all that follows, another word.
SPLICES = st.tuples(
    PLACE, st.sampled_from([0, 1, 8, 64, 1 << 14]), st.sampled_from([b"", bytes(8)]) | st.binary(max_size=9)
)


@st.composite
def files(draw) -> dict[str, bytes]:
    """A model in one or two files, with damage of some kinds in one of them."""
    pair = list(BASES[draw(st.sampled_from(list(BASES)))])
    which = draw(st.sampled_from([0, 0, 0, 1]))
    raw = set_numbers(pair[which], draw(st.lists(st.tuples(st.sampled_from(ROLES), PLACE, EVIL), max_size=3)))
    pair[which] = splice(raw, draw(st.lists(SPLICES, max_size=2)))
    return dict(zip((FIRST, SECOND), pair, strict=True))


@contextmanager
def bounded():
    """Of this process's own time, so that a busy machine does not fail the test."""
    tracemalloc.start()
    started = time.process_time()
    try:
        yield
        taken = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < SECONDS and peak < BYTES, f"{taken:.2f} s, {peak:,} bytes"


def assert_says_what_to_do(error: SpecdecError) -> None:
    """An error says what is wrong and what to do, and quotes no more than a person reads."""
    assert str(error).strip() and error.hint.strip()
    assert len(str(error)) < 1000 and len(error.hint) < 1000
    assert error.exit_code in (1, 3)


def read(model: dict[str, bytes]) -> Header | None:
    try:
        return read_model(FIRST, lambda name: nullcontext((io.BytesIO(model[name]), len(model[name]))))
    except SpecdecError as error:
        assert_says_what_to_do(error)
        assert "base-0000" in str(error)
    return None


def strings(value) -> int:
    """Take every string out of a value; how many there are."""
    if isinstance(value, list):
        return sum(map(strings, value))
    if not isinstance(value, StringArray):
        return 0
    assert sum(8 + len(text) for text in value.values) == len(value.raw)
    assert len(value.values) == value.count
    return value.count


def used(header: Header) -> None:
    """What a command does with a header before llama.cpp sees the file."""
    assert sum(map(strings, header.metadata.values())) >= 0
    assert header.quantisation and 0 <= header.n_active_params <= header.n_params
    for use in (
        lambda: require_runnable(header),
        lambda: compare(header, header).require(),
        lambda: cache_bytes(header, 4096),
        lambda: footprint(header, 4096, {"Q4_0", "Q8_0", "F32"}).total,
    ):
        try:
            use()
        except SpecdecError as error:
            assert_says_what_to_do(error)


def test_the_files_to_damage_are_whole():
    for name, pair in BASES.items():
        header = read(dict(zip((FIRST, SECOND), pair, strict=True)))
        assert (header is None) == (name == "second part"), name
        if header is not None:
            assert header.n_params == 8 + 32 + 32 and header.n_active_params == 8 + 16 + 32
            assert compare(header, header).verdict == "identical"
            assert cache_bytes(header, 4096) == 4096 * 3 * (2 + 2) * 2
            assert sum(map(strings, header.metadata.values())) == 10 + 2 + 4
            assert set_numbers(pair[0], []) == splice(pair[0], []) == pair[0]


@settings(
    max_examples=int(20_000 * float(SCALE)) if SCALE else 100,
    derandomize=not SCALE,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(model=files())
def test_a_damaged_header_can_be_used_or_is_refused(model):
    with bounded():
        header = read(model)
        if header is not None:
            used(header)


def test_every_key_may_have_any_value_and_every_row_be_missing_or_repeated():
    """One at a time, so that no chance decides whether it is tried."""
    layout = ggufs.layout(SPLIT)
    keys, tensors = [SPLIT[row] for row in layout.keys], [SPLIT[row] for row in layout.tensors]
    heads = []
    for i, key in enumerate(keys):
        name = key[: 8 + struct.unpack_from("<Q", key)[0]]
        for new in ([], [key, key], *([name + value] for value in VALUES)):
            heads.append(ggufs.header([*keys[:i], *new, *keys[i + 1 :]], tensors))
    for i, tensor in enumerate(tensors):
        heads += [ggufs.header(keys, [*tensors[:i], *new, *tensors[i + 1 :]]) for new in ([], [tensor, tensor])]
    for head in heads:
        header = read({FIRST: ggufs.padded(head, bytes(224)), SECOND: LAST})
        if header is not None:
            used(header)
