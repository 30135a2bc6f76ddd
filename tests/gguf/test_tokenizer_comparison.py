import copy
import json
import re
from dataclasses import asdict, replace
from time import process_time

import ggufs
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.errors import IncompatiblePair
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.gguf.tokenizer_comparison import compare
from specdec_cli.gguf.vocabulary import tokenizer_digest as digest

MERGES = "tokenizer.ggml.merges"
WORDS = [b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab", b"\xff"]


def model(words=WORDS, name: str = "target.gguf", drop=(), **fields) -> Header:
    """A header with a tokenizer; `fields` replace or add tokenizer values, `drop` removes them."""
    values = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": ggufs.string_array(words),
        "token_type": np.array([2, 3, 3] + [1] * (len(words) - 3), np.int32),
        "merges": ggufs.string_array([b"a b", b"b a"]),
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


def pair_of(role: str, one: dict, other: dict) -> tuple[Header, Header]:
    """Target and draft, the one with these fields being `role`."""
    return (model(**one), draft(**other)) if role == "target" else (model(**other), draft(**one))


def replaced(**changes: bytes) -> list[bytes]:
    return [changes.get(f"t{i}", word) for i, word in enumerate(WORDS)]


SPM = {"model": "llama", "pre": "default", "add_eos_token": True}
SWAPPED = StringArray(b"".join(len(text).to_bytes(8, "big") + text for text in (b"a b", b"b a")), 2, "big")
PLAIN = {"words": [b"a", b"b", b"c"], "token_type": np.array([1, 1, 1])}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({"drop": ["merges"]}, {"drop": ["merges"]}),
        ({}, {"merges": SWAPPED}),  # stored in the other byte order
        (PLAIN, {"words": PLAIN["words"], "drop": ["token_type"]}),  # types that are missing count as normal
        (PLAIN, {"words": PLAIN["words"], "token_type": np.array([1])}),
        ({"pre": "gemma4"}, {"pre": "gemma4", "add_bos_token": False}),  # which adds BOS whatever its flag says
        ({"model": "gemma4", "pre": "gemma4"}, {"model": "gemma4", "drop": ["pre"], "add_bos_token": False}),
        # SentencePiece ignores merges and pre-tokenizers; without BOS and EOS, it assumes tokens 1 and 2.
        (SPM, SPM | {"drop": ["merges", "pre", "bos_token_id", "eos_token_id"]}),
        (SPM, SPM | {"pre": "llama-bpe", "merges": ggufs.string_array([b"a b"])}),
    ],
)
def test_metadata_of_the_same_meaning(one, other):
    result = compare(model(**one), draft(**other))
    assert (result.verdict, result.n_differing, result.reason, result.llama_cpp_accepts) == ("identical", 0, "", True)
    assert {check.outcome for check in result.checks} == {"same"}
    result.require()


@pytest.mark.parametrize("other", [{"drop": ["token_type"]}, {"token_type": np.array([2, 3, 4, 1, 1, 3, 1])}])
def test_other_types_of_the_same_texts_are_harmless(other):
    result = compare(model(), draft(**other))
    assert (result.verdict, result.llama_cpp_accepts) == ("compatible", True)
    assert re.fullmatch(r"[23] tokens have another type", result.reason)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre": "llama-bpe"}, "pre-tokenizer 'qwen2' in the target, 'llama-bpe' in the draft"),
        ({"drop": ["pre"]}, "pre-tokenizer 'qwen2' in the target, None in the draft"),
        ({"merges": ggufs.string_array([b"a b", b"a a"])}, "merge 1 is 'b a' in the target, 'a a' in the draft"),
        ({"drop": ["merges"]}, "only one of them has BPE merges"),
    ],
)
def test_how_a_draft_would_split_texts_is_harmless(changes, says):
    result = compare(model(), draft(**changes))
    assert (result.verdict, result.llama_cpp_accepts) == ("compatible", True)
    assert result.reason == f"{says}, but only the target tokenizes text"


TAILS = [  # of which type, and whether no model emits it
    ([b"[PAD7]", b"[PAD8]"], 1, True),  # what converters fill up with is named beyond doubt
    ([b"<|extra_0|>", b"<pad_1>"], 3, True),
    ([b"<|extra_0|>", b"<pad_1>"], 1, False),
    ([b"<|reserved_special_token_9|>"], 3, True),
    ([b"hello", b"world"], 5, True),  # unused by its type
    ([b"real", b"[PAD8]"], 1, False),
    ([b"[PAD]x", b"[PAD8]"], 1, False),
]


@pytest.mark.parametrize(("tail", "kind", "reserved"), TAILS)
@pytest.mark.parametrize("longer", ["target", "draft"])
def test_a_longer_vocabulary(longer, tail, kind, reserved):
    types = np.array([2, 3, 3] + [1] * (len(WORDS) - 3) + [kind] * len(tail), np.int32)
    result = compare(*pair_of(longer, {"words": WORDS + tail, "token_type": types}, {}))
    assert (result.verdict, result.n_shared) == ("compatible" if reserved else "translatable", len(WORDS))
    said = f"{longer}'s vocabulary" if reserved else f"token {len(WORDS)} of {longer}.gguf is '{tail[0].decode()}'"
    assert said in result.reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama"}, ["tokenizer model", "'gpt2'", "'llama'"]),
        ({"drop": ["model"]}, ["tokenizer model", "'gpt2'", "None"]),
        ({"words": replaced(t0=b"x", t6=b"y")}, ["token 0", "'<unk>'", "'x'", "2 of 7"]),
        # The first differing text says more than anything else.
        ({"words": replaced(t4=b"c"), "model": "llama"}, ["token 4", "'b'", "'c'", "1 of 7"]),
        ({"words": [*WORDS, b"used"]}, ["the target has 7 tokens, the draft 8, and token 7 of draft.gguf is 'used'"]),
        ({"token_type": np.array([2, 3, 3, 1, 6, 6, 1])}, ["token 4", "'b'", "type 1", "type 6 in the draft", "2 of"]),
        ({"bos_token_id": 2}, ["BOS", "1", "2"]),
        ({"drop": ["bos_token_id"]}, ["BOS", "1", "None"]),
        ({"add_bos_token": False}, ["add_bos_token", "True", "False"]),
        ({"drop": ["add_bos_token"]}, ["add_bos_token", "True", "False"]),  # its default
        ({"add_eos_token": True}, ["add_eos_token", "False", "True"]),
    ],
)
def test_every_difference_is_named(changes, says):
    result = compare(model(), draft(**changes))
    known = changes.get("drop") != ["model"]
    assert result.verdict == ("translatable" if known else "incompatible")
    assert (result.overlap is not None) == known
    assert result.llama_cpp_accepts == llama_cpp_accepts(model(), draft(**changes))
    assert all(part in result.reason for part in says)
    if known:
        result.require()
        return
    with pytest.raises(IncompatiblePair) as caught:
        result.require()
    assert result.reason in str(caught.value) and caught.value.hint and caught.value.exit_code == 3


@pytest.mark.parametrize(("name", "used"), [("eos", True), ("eot", False), ("unknown", False), ("separator", False)])
def test_special_tokens_that_no_text_gets_may_differ(name, used):
    for adds in (False, True):
        pair = model(add_eos_token=adds), draft(add_eos_token=adds, **{f"{name}_token_id": 1})
        result = compare(*pair)
        assert result.verdict == ("translatable" if used and adds else "compatible")
        assert result.llama_cpp_accepts == llama_cpp_accepts(*pair)


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
@pytest.mark.parametrize(("kind", "pre", "bos", "eos"), DEFAULTS)
def test_a_missing_flag_means_its_default(kind, pre, bos, eos, missing_in):
    for key, value in (("add_bos_token", bos), ("add_eos_token", eos)):
        for stated in (value, not value):
            with_key, without = {"model": kind, "pre": pre, key: stated}, {"model": kind, "pre": pre, "drop": [key]}
            found = compare(*pair_of(missing_in, without, with_key)).verdict
            assert (found == "identical") == (stated == value), (key, stated)


@pytest.mark.parametrize("tokens", [None, StringArray(b"", 0), np.array([1, 2]), "text"])
@pytest.mark.parametrize("lacking", ["target", "draft"])
def test_a_model_without_a_tokenizer_fits_nothing(tokens, lacking):
    result = compare(*pair_of(lacking, {"tokens": tokens}, {}))
    assert result.verdict == "incompatible" and f"{lacking}.gguf has no tokenizer" in result.reason


@pytest.mark.slow
def test_large_vocabularies_are_compared_without_quadratic_work():
    large = [b"token%d" % i for i in range(150_000)]
    words = [*(word.upper() for word in large), *(b"[PAD%d]" % i for i in range(100))]
    target, other = (
        model(each, merges=ggufs.string_array(each), token_type=np.ones(len(each), np.int32)) for each in (large, words)
    )
    started = process_time()
    result = compare(target, replace(other, metadata={**other.metadata, MERGES: target.metadata[MERGES]}))
    # On a quiet machine 0.2, on a busy one several times that; quadratic work would take minutes.
    assert process_time() - started < 3 and result.verdict == "translatable"


# --- llama.cpp's own rule ---


def llama_cpp_accepts(target: Header, draft: Header) -> bool:
    """What common/speculative.cpp asks of a pair, written from that file and not from ours."""
    one, other = (
        {key.removeprefix("tokenizer.ggml."): value for key, value in header.metadata.items()}
        for header in (target, draft)
    )
    if one.get("model") != other.get("model"):
        return False
    defaults = {(kind, pre): {"bos": bos, "eos": eos} for kind, pre, bos, eos in DEFAULTS}
    for name in ("bos", "eos"):
        assumed = [defaults.get((fields["model"], fields.get("pre", "default")), {}) for fields in (one, other)]
        adds = [
            fields.get(f"add_{name}_token", flags.get(name))
            for fields, flags in zip((one, other), assumed, strict=True)
        ]
        if adds[0] != adds[1] or (adds[0] and one.get(f"{name}_token_id") != other.get(f"{name}_token_id")):
            return False
    texts, others = one["tokens"].values, other["tokens"].values
    if abs(len(texts) - len(others)) > 128:
        return False
    return all(a == b for a, b in list(zip(texts, others, strict=False))[5:])


RESERVED = [b"[PAD6]", b"<unused7>", b"<|reserved_special_token_9|>", b"<|image_pad|>"]
TEXTS = [b"a", b"b", b"<s>", b"word", *RESERVED]
TYPES = [1, 3, 5]
FIELDS = {
    "model": ["gpt2", "llama"],
    "pre": ["default", "gpt-2", "llama-bpe"],
    "merges": [ggufs.string_array([b"a b"]), ggufs.string_array([b"a b", b"b a"]), ggufs.string_array([b"b a"])],
    "bos_token_id": [1, 2, 6],
    "eos_token_id": [1, 2, 6],
    "eot_token_id": [2, 7],
    "unknown_token_id": [0, 1],
    "add_bos_token": [True, False],
    "add_eos_token": [True, False],
}
DROPPED = ("merges", "pre", "eot_token_id", "unknown_token_id", "add_bos_token", "add_eos_token", "token_type")


@st.composite
def headers(draw) -> tuple[Header, Header]:
    """A target with some reserved tokens, and a draft that differs from it in a few things or in none."""
    words = [*WORDS[:5], *draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4))]
    kind, pre = draw(st.sampled_from([known[:2] for known in DEFAULTS if known[0] in FIELDS["model"]]))
    types = [draw(st.sampled_from(TYPES)) for _ in words]
    base = {"model": kind, "pre": pre}
    target = model(words, token_type=np.array(types), **base)
    dropped: set[str] = set()
    for what in draw(
        st.lists(st.sampled_from(["text", "type", "tail", "cut", "field", "drop"]), min_size=1, max_size=3)
    ):
        i = draw(st.integers(0, len(words) - 1))
        if what == "text":
            words = [*words[:i], draw(st.sampled_from(TEXTS)), *words[i + 1 :]]
        elif what == "type":
            types = [*types[:i], draw(st.sampled_from(TYPES)), *types[i + 1 :]]
        elif what == "tail":
            tail = [draw(st.sampled_from(TEXTS))] * draw(st.sampled_from([1, 127, 128, 129]))
            words, types = words + tail, types + [draw(st.sampled_from(TYPES))] * len(tail)
        elif what == "cut" and i:
            words, types = words[:i], types[:i]
        elif what == "field":
            key = draw(st.sampled_from(list(FIELDS)))
            base[key] = draw(st.sampled_from(FIELDS[key]))
        elif what == "drop":
            dropped.add(draw(st.sampled_from(DROPPED)))
    if (base["model"], "default" if "pre" in dropped else base["pre"]) not in {known[:2] for known in DEFAULTS}:
        base["model"], base["pre"] = kind, pre
        dropped.discard("pre" if kind == "gpt2" else "")
    pair = (target, draft(words, token_type=np.array(types), drop=dropped, **base))
    return pair[::-1] if draw(st.booleans()) else pair


@pytest.mark.slow
@settings(max_examples=450, deadline=None, derandomize=True)
@given(headers())
def test_no_pair_is_taken_that_llama_cpp_refuses_but_for_the_names_of_reserved_tokens(pair):
    target, draft = pair
    result, swapped = compare(target, draft), compare(draft, target)
    accepts = llama_cpp_accepts(target, draft)
    assert result.llama_cpp_accepts == swapped.llama_cpp_accepts == accepts
    assert (result.verdict, result.n_differing) == (swapped.verdict, swapped.n_differing)
    assert compare(target, target).verdict == compare(draft, draft).verdict == "identical"
    assert (result.reason == "") == (result.verdict == "identical")
    event(f"{result.verdict}, llama.cpp {'takes' if accepts else 'refuses'} it")
    if result.verdict == "translatable" or accepts:
        return
    texts, others = (header.metadata["tokenizer.ggml.tokens"].values for header in pair)
    differing = [i for i, (a, b) in enumerate(zip(texts, others, strict=False)) if a != b]
    assert differing and result.verdict == "compatible"
    for header, found in zip(pair, (texts, others), strict=True):
        known = header.metadata
        types = known.get("tokenizer.ggml.token_type", np.ones(len(found)))
        assert all(found[i] in RESERVED or types[i] == 5 for i in differing)
        assert not {known.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")} & {*differing}
    same_texts = ggufs.string_array([*texts[: len(others)], *others[len(texts) :]])
    assert llama_cpp_accepts(target, replace(draft, metadata={**draft.metadata, "tokenizer.ggml.tokens": same_texts}))


@pytest.mark.parametrize("padding", [127, 128, 129])
def test_as_much_padding_as_llama_cpp_allows(padding):
    pair = (model(), draft([*WORDS, *(b"[PAD%d]" % i for i in range(padding))]))
    assert compare(*pair).verdict == ("compatible" if padding <= 128 else "translatable")
    assert compare(*pair).llama_cpp_accepts == llama_cpp_accepts(*pair) == (padding <= 128)


RAGGED = [np.array([1, 2]), [], [np.array([3])]]
ANYTHING = [RAGGED, [[np.array([1, 2])], "x"], np.array([1.5, 2]), float("nan"), 10**18, "1"]


@pytest.mark.parametrize("value", ANYTHING, ids=map(repr, ANYTHING))
@pytest.mark.parametrize("key", ["model", "pre", "bos_token_id", "add_bos_token", "merges", "token_type"])
def test_metadata_may_be_anything(key, value):
    for pair in ((model(), draft(**{key: value})), (model(**{key: value}), draft(**{key: copy.deepcopy(value)}))):
        json.dumps([asdict(check) for check in compare(*pair).checks])
    assert digest(model(**{key: value})) == digest(model(**{key: copy.deepcopy(value)})) != digest(model())


def test_arrays_of_arrays_are_told_apart_by_their_lengths():
    digests = {digest(model(pre=value)) for value in (RAGGED, RAGGED[:1], [np.array([1]), np.array([2])], [[], RAGGED])}
    assert len(digests) == 4
