"""The header of a draft with a part of its target's tokens: what it says, what is refused, and whose it is."""

import hashlib
from dataclasses import replace

import ggufs
import numpy as np
import pytest
import tiny

from specdec_cli.decoding.errors import IncompatiblePair, SpecdecError
from specdec_cli.gguf import vocabulary
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary, require_tokenizer
from specdec_cli.gguf.tokenizer_comparison import compare
from specdec_cli.gguf.vocabulary import DIGEST, IDS, READS

TOKENS = ggufs.string_array([b"a", b"b", b"c", b"d", b"e"])
WHOLE = {
    "general.architecture": "llama",
    "llama.vocab_size": 3,
    "tokenizer.ggml.model": "none",
    IDS: np.array([4, 0, 2], np.int32),
    READS: np.array([1, 1, 2, 2, 0], np.int32),
    DIGEST: hashlib.sha256(TOKENS.raw).hexdigest(),
}


def header(name="draft.gguf", **changes) -> Header:
    return Header(name, 3, {**WHOLE, **changes}, (), 0)


def target(tokens=TOKENS) -> Header:
    return Header("t.gguf", 3, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}, (), 0)


def test_what_it_says():
    found = vocabulary.read_reduced(header())
    assert (found.ids.tolist(), found.reads.tolist()) == ([4, 0, 2], [1, 1, 2, 2, 0])
    assert found.is_of(target()) and str(found) == "3 of the target's 5 tokens"
    assert vocabulary.read_reduced(target()) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (IDS, np.array([4, 0, 4], np.int32), "names a token twice"),
        (IDS, np.array([5, 0, 2], np.int32), "names token 5 of 5"),
        (IDS, np.array([-1, 0, 2], np.int32), "names token -1 of 5"),
        (IDS, np.array([4, 0, 2], np.float32), "not an array of token ids"),
        (IDS, np.array([], np.int32), "not an array of token ids"),
        (IDS, TOKENS, "not an array of token ids"),
        (READS, None, "not an array of token ids"),
        (READS, np.array([2**64 - 1, 1, 2, 2, 0], np.uint64), "names token 18,446"),
        ("llama.vocab_size", 4, "claims 4 tokens"),
        ("tokenizer.ggml.model", "gpt2", "and a tokenizer"),
        (DIGEST, None, "tokens_sha256 is None"),
    ],
)
def test_what_contradicts_itself(key, value, said):
    with pytest.raises(SpecdecError, match=said):
        vocabulary.read_reduced(header(**{key: value}))
    comparison = compare(target(), header(**{key: value}))
    assert comparison.verdict == "incompatible" and said in comparison.reason


def test_a_comparison_says_how_much_it_can_say():
    found = compare(target(), header())
    found.require()
    assert (found.verdict, found.n_shared, found.overlap, found.llama_cpp_accepts) == ("reduced", 5, None, False)
    assert "3 of the target's 5 tokens" in found.reason


@pytest.mark.parametrize("tokens", [ggufs.string_array([b"a", b"b", b"c", b"d", b"f"]), replace(TOKENS, count=4)])
def test_it_is_for_one_target(tokens):
    found = compare(target(tokens), header())
    with pytest.raises(IncompatiblePair, match=r"draft\.gguf was made for another target"):
        found.require()
    assert not found.llama_cpp_accepts


def test_it_is_no_target(tmp_path):
    draft = read_header(tiny.write_reduced(tmp_path / "d.gguf"))
    require_runnable(draft)
    require_sound_vocabulary(draft)
    target = read_header(tiny.write(tmp_path / "t.gguf", "llama"))
    assert (compare(draft, draft).verdict, compare(draft, target).verdict) == ("incompatible", "incompatible")
    assert compare(target, draft).verdict == "reduced"
    with pytest.raises(SpecdecError, match="a part of its target's tokens"):
        require_tokenizer(draft)
