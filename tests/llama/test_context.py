"""A context of the bundled target: rows, long prompts, rewinding and interrupts."""

import numpy as np
import pytest

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.llama.context import N_BATCH
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.target import LlamaTarget

ROUNDING = 0.05
"""By how much these rows of the bundled pair may differ: a batch of another size rounds differently."""


@pytest.fixture
def target(load):
    return load("target")


def test_a_prompt_longer_than_a_batch(target, opened):
    tokens = (target.tokenize("x = [1, 2, 3]\n") * 200)[: 2 * N_BATCH - 77]
    whole, parts = opened("target"), opened("target")
    last = whole.decode(tokens)[0].copy()
    for start in range(0, len(tokens), 100):
        row = parts.decode(tokens[start : start + 100])[0]
    assert whole.length == parts.length == len(tokens)
    assert np.abs(last - row).max() < 0.5  # rounding adds up over 900 tokens; a lost or misplaced one costs several


def test_a_long_text_is_read_in_pieces_that_depend_on_its_length_alone(opened):
    """Other pieces would round otherwise, and two runs on one prompt would begin differently."""
    context = opened("target", 4)
    for total, pieces in ((20, [20]), (128, [128]), (129, [32, 97]), (400, [32, 128, 128, 112])):
        sizes, seen = [], []
        context.on_pass = lambda tokens, seconds, sizes=sizes: sizes.append(tokens)
        context.on_read = lambda done, whole, seen=seen: seen.append((done, whole))
        context.rewind(0)
        context.decode(range(1, total + 1))
        assert sizes == pieces and context.length == total
        reported = [0, *(sum(pieces[: i + 1]) for i in range(len(pieces)))] if len(pieces) > 1 else []
        assert seen == [(done, total) for done in reported], "the end is told, too"


def test_rows_of_a_verification_are_those_of_single_decodes(target, opened):
    context = opened("target")
    assert LlamaTarget(context).max_draft == 16
    tokens = target.tokenize("def f(x):\n    return x + 1\n\ndef g(y):\n")[:12]
    together = context.decode(tokens, all_rows=True).copy()
    context.rewind(0)
    for token, row in zip(tokens, together, strict=True):
        assert np.abs(context.decode((token,))[0] - row).max() < ROUNDING


def test_an_aborted_decode_raises_and_the_prefix_stays(opened):
    own = Interrupt()
    context = opened("target", interrupt=own)
    context.decode((1, 2, 3))
    own.set()
    with pytest.raises(Interrupted):
        context.decode((4,) * 100)
    assert context.length == 3


def test_tokenize_and_pieces_are_inverse(target):
    text = "def naïve(x): return '🙂'\n\t# 数\n"
    tokens = target.tokenize(text)
    assert tokens[0] == 0, "this vocabulary begins with BOS"
    assert b"".join(target.piece(token) for token in tokens).decode() == text
    assert target.tokenize(text, add_bos=False) == tokens[1:]
    assert target.is_end(0) and not target.is_end(5)
