import struct
from time import perf_counter

import ggufs
import numpy as np
import pytest

from specdec_cli.decoding.errors import IncompatiblePair, SpecdecError
from specdec_cli.models.gguf import Header, StringArray, read_header
from specdec_cli.models.vocab import compare

WORDS = [b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab", b"\xff"]


def string_array(values) -> StringArray:
    return StringArray(b"".join(map(ggufs.text, values)), len(values))


def model(words=WORDS, name: str = "target.gguf", drop=(), **fields) -> Header:
    """A header with a tokenizer; `fields` replace or add tokenizer values, `drop` removes them."""
    values = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": string_array(words),
        "token_type": np.array([2, 3, 3] + [1] * (len(words) - 3), np.int32),
        "merges": string_array([b"a b", b"b a"]),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "eot_token_id": 2,
        "unknown_token_id": 0,
        "separator_token_id": 2,
        "add_bos_token": True,
        "add_eos_token": False,
        **fields,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items() if key not in drop}
    return Header(name, 3, {"general.architecture": "llama", **metadata}, (), 0)


def draft(*args, **fields) -> Header:
    return model(*args, name="draft.gguf", **fields)


def replaced(words, **changes: bytes) -> list[bytes]:
    return [changes.get(f"t{i}", word) for i, word in enumerate(words)]


def test_identical():
    result = compare(model(), draft())
    assert (result.verdict, result.n_shared, result.n_differing, result.reason) == ("identical", len(WORDS), 0, "")
    assert result.llama_cpp_accepts and {check.outcome for check in result.checks} == {"same"}
    compare(model(), draft()).require()


def test_a_byte_array_of_merges_and_no_merges_at_all_are_equal_to_themselves():
    assert compare(model(drop=["merges"]), draft(drop=["merges"])).verdict == "identical"


@pytest.mark.parametrize(
    "tail", [[b"[PAD7]", b"[PAD8]"], [b"<|extra_0|>", b"<pad_1>"], [b"<|reserved_special_token_9|>"]]
)
@pytest.mark.parametrize("longer", ["target", "draft"])
def test_a_reserved_tail_is_padding(longer, tail):
    long, short = WORDS + tail, WORDS
    result = compare(model(long if longer == "target" else short), draft(long if longer == "draft" else short))
    assert (result.verdict, result.n_shared) == ("compatible", len(WORDS))
    assert longer in result.reason and str(len(tail)) in result.reason
    result.require()


@pytest.mark.parametrize("longer", ["target", "draft"])
def test_a_tail_of_unused_type_is_padding_whatever_its_text(longer):
    types = np.array([2, 3, 3, 1, 1, 1, 1, 5, 5], np.int32)
    long = {"words": [*WORDS, b"hello", b"world"], "token_type": types}
    pair = (model(**long), draft()) if longer == "target" else (model(), draft(**long))
    assert compare(*pair).verdict == "compatible"


@pytest.mark.parametrize("longer", ["target", "draft"])
@pytest.mark.parametrize("tail", [[b"[PAD7]", b"real"], [b"real", b"[PAD8]"], [b"[PAD]x", b"[PAD8]"]])
def test_a_tail_with_a_real_token_is_not_padding(longer, tail):
    long, short = WORDS + tail, WORDS
    result = compare(model(long if longer == "target" else short), draft(long if longer == "draft" else short))
    used = next(i for i, word in enumerate(tail) if not word.endswith(b"]"))
    assert result.verdict == "incompatible"
    assert f"token {len(WORDS) + used} of {longer}.gguf is '{tail[used].decode()}'" in result.reason
    assert str(len(long)) in result.reason and str(len(short)) in result.reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama"}, ["tokenizer model", "'gpt2'", "'llama'"]),
        ({"drop": ["model"]}, ["tokenizer model", "'gpt2'", "None"]),
        ({"pre": "llama-bpe"}, ["pre-tokenizer", "'qwen2'", "'llama-bpe'"]),
        ({"drop": ["pre"]}, ["pre-tokenizer", "'qwen2'", "None"]),
        ({"words": replaced(WORDS, t4=b"c")}, ["token 4", "'b'", "'c'", "1 of 7"]),
        ({"words": replaced(WORDS, t0=b"x", t6=b"y")}, ["token 0", "'<unk>'", "'x'", "2 of 7"]),
        ({"words": replaced(WORDS, t6=b"\xfe")}, ["token 6", "1 of 7"]),
        ({"words": [*WORDS[:3], b"b", b"a", *WORDS[5:]]}, ["token 3", "'a'", "'b'", "2 of 7"]),
        ({"words": replaced(WORDS, t5=b"zz")[:6]}, ["token 5", "'ab'", "'zz'", "1 of 6"]),
        ({"token_type": np.array([2, 3, 3, 1, 4, 4, 1])}, ["token 4", "'b'", "type 1", "4 in the draft", "2 types"]),
        ({"drop": ["token_type"]}, ["token 0", "'<unk>'", "type 2", "3 types"]),
        ({"merges": string_array([b"a b", b"a a"])}, ["merge 1", "'b a'", "'a a'"]),
        ({"merges": string_array([b"a b"])}, ["2 merges", "1"]),
        ({"drop": ["merges"]}, ["merges"]),
        ({"bos_token_id": 2}, ["BOS", "1", "2"]),
        ({"eos_token_id": 1}, ["EOS", "2", "1"]),
        ({"eot_token_id": 1}, ["EOT", "2", "1"]),
        ({"unknown_token_id": 1}, ["UNKNOWN", "0", "1"]),
        ({"separator_token_id": 1}, ["SEPARATOR", "2", "1"]),
        ({"drop": ["bos_token_id"]}, ["BOS", "1", "None"]),
        ({"add_bos_token": False}, ["add_bos_token", "True", "False"]),
        ({"add_eos_token": True}, ["add_eos_token", "False", "True"]),
    ],
)
def test_every_difference_is_named(changes, says):
    result = compare(model(), draft(**changes))
    assert result.verdict == "incompatible"
    for part in says:
        assert part in result.reason
    with pytest.raises(IncompatiblePair) as caught:
        result.require()
    assert result.reason in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 3


def test_texts_are_compared_before_anything_derived_from_them():
    """The first differing text says more than the count of merges."""
    other = draft(replaced(WORDS, t3=b"q"), merges=string_array([b"q b"]), bos_token_id=0)
    assert "token 3" in compare(model(), other).reason


# What llama.cpp assumes of a model whose metadata does not say (llama_vocab::impl::load).
DEFAULTS = [
    ("llama", "default", True, False),
    ("gpt2", "qwen2", False, False),
    ("gpt2", "gpt-2", False, False),
    ("gpt2", "llama-bpe", True, False),
    ("gpt2", "tekken", True, False),
    ("bert", "default", True, False),
    ("t5", "default", False, True),
    ("rwkv", "default", False, False),
]


@pytest.mark.parametrize("missing_in", ["target", "draft"])
@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token"])
@pytest.mark.parametrize(("kind", "pre", "bos", "eos"), DEFAULTS, ids=[f"{d[0]}-{d[1]}" for d in DEFAULTS])
def test_a_missing_flag_means_its_default(kind, pre, bos, eos, key, missing_in):
    default = bos if key == "add_bos_token" else eos
    for value in (True, False):
        with_key, without = {"model": kind, "pre": pre, key: value}, {"model": kind, "pre": pre, "drop": [key]}
        pair = (
            (model(**without), draft(**with_key)) if missing_in == "target" else (model(**with_key), draft(**without))
        )
        assert (compare(*pair).verdict == "identical") == (value == default), value


def test_types_that_are_missing_count_as_normal():
    words = [b"a", b"b", b"c"]
    plain = {"words": words, "token_type": np.array([1, 1, 1])}
    assert compare(model(**plain), draft(words, drop=["token_type"])).verdict == "identical"
    assert compare(model(**plain), draft(words, token_type=np.array([1]))).verdict == "identical"


@pytest.mark.parametrize("tokens", [None, StringArray(b"", 0), np.array([1, 2]), "text"])
@pytest.mark.parametrize("lacking", ["target", "draft"])
def test_a_model_without_a_tokenizer_fits_nothing(tokens, lacking):
    pair = (model(tokens=tokens), draft()) if lacking == "target" else (model(), draft(tokens=tokens))
    result = compare(*pair)
    assert result.verdict == "incompatible" and f"{lacking}.gguf has no tokenizer" in result.reason
    with pytest.raises(SpecdecError):
        result.require()


@pytest.mark.parametrize("change", ["none", "last token", "all tokens", "last merge", "padding"])
def test_large_vocabularies_are_compared_without_quadratic_work(tmp_path, change):
    size = 150_000
    words = [f"token{i}" for i in range(size)]
    merges = [f"tok en{i}" for i in range(size)]
    paths = []
    for role in ("target", "draft"):
        if role == "draft" and change in ("last token", "all tokens"):
            words = [w.upper() if change == "all tokens" or i == size - 1 else w for i, w in enumerate(words)]
        if role == "draft" and change == "last merge":
            merges[-1] = "other"
        if role == "draft" and change == "padding":
            words += [f"[PAD{i}]" for i in range(100)]
        keys = [
            ggufs.key("tokenizer.ggml.model", ggufs.STRING, ggufs.text("gpt2")),
            ggufs.strings("tokenizer.ggml.tokens", words),
            ggufs.key(
                "tokenizer.ggml.token_type",
                ggufs.ARRAY,
                ggufs.array(5, len(words), struct.pack(f"<{len(words)}i", *[1] * len(words))),
            ),
            ggufs.strings("tokenizer.ggml.merges", merges),
        ]
        paths.append(tmp_path / f"{role}.gguf")
        paths[-1].write_bytes(ggufs.header(keys))
    started = perf_counter()
    result = compare(*map(read_header, paths))
    assert perf_counter() - started < 3
    verdicts = {"none": "identical", "padding": "compatible"}
    assert result.verdict == verdicts.get(change, "incompatible")
