"""A context of the bundled target: long texts, interrupts and tokens."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import sleep

import gguf_models
import ggufs
import numpy as np
import pytest

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.pass_probes import pass_laps, pass_seconds


def test_a_long_text_is_read_in_chunks_that_depend_on_its_length_alone(opened):
    """Other chunks would round otherwise, and two runs on one prompt would begin differently."""
    context = opened("target", 4)
    for total, chunks in ((20, [20]), (128, [128]), (129, [32, 97]), (400, [32, 128, 128, 112])):
        sizes, seen = [], []
        context.passes.on_pass = lambda tokens, seconds, sizes=sizes: sizes.append(tokens)
        context.on_read = lambda done, whole, seen=seen: seen.append((done, whole))
        context.rewind(0)
        context.decode(range(1, total + 1))
        assert sizes == chunks and context.length == total
        reported = [0, *(sum(chunks[: i + 1]) for i in range(len(chunks)))] if len(chunks) > 1 else []
        assert seen == [(done, total) for done in reported], "the end is told, too"


@pytest.mark.parametrize(("on_gpu", "passes"), [(False, 1), (True, 2)])
def test_the_pass_in_which_a_gpu_loads_kernels_is_not_timed(opened, monkeypatch, on_gpu, passes):
    """Nor is one that follows a pass of its size, which a GPU records: drafts vary in length."""
    context, sizes = opened("target", 4), []
    monkeypatch.setattr(context.passes.model, "on_gpu", on_gpu)
    context.passes.on_pass = lambda tokens, seconds: sizes.append(tokens)
    laps = pass_laps(context, range(1, 9), (1, 2, 4), 3, 0.0)
    assert sizes.count(4) == passes and len(laps[4]) == 1
    assert all(one != two for one, two in pairwise(sizes) if one != 1)


def test_of_repeated_passes_the_one_that_a_gpu_replays_is_timed(opened):
    context, sizes = opened("target", 4), []
    context.passes.on_pass = lambda tokens, seconds: sizes.append(tokens)
    laps = pass_laps(context, range(1, 9), (4, 2), 2, 0.0, repeated=True)
    assert sizes[-2 * SETTLED :] == [4] * SETTLED + [2] * SETTLED and [*map(len, laps.values())] == [1, 1]


def test_two_tokens_can_be_read_one_by_one(opened):
    context, sizes = opened("target", 4), []
    context.decode((1, 2, 3))
    context.passes.on_pass = lambda tokens, seconds: sizes.append(tokens)
    context.singly = True
    row = context.decode((4, 5))[0].copy()
    context.rewind(3)
    context.singly = False
    assert np.allclose(row, context.decode((4, 5))[0], atol=1e-2) and sizes == [1, 1, 2] and context.length == 5
    context.rewind(3)
    context.singly = True
    assert len(context.decode((4, 5), all_rows=True)) == 2 and sizes[3:] == [2], "with all rows, in one pass"


def test_timed_passes_are_not_watched(opened):
    """With other threads in the middle, they would take another time."""
    context, seen = opened("target", 4), []
    context.passes.on_pass = lambda *passed: seen.append(passed)
    assert pass_seconds(context, range(1, 9), (1, 2, 4), 3, 0.0) and not seen
    context.decode((1,))
    assert seen


def test_an_empty_text_leaves_it_usable(opened):
    context = opened("target")
    context.reuses = True
    assert context.begin([]) == 0
    context.decode((1, 2, 3))
    assert context.begin([]) == context.length == 0


@pytest.mark.parametrize("how", ["interrupted", "saved"])
def test_cells_that_are_not_counted_are_dropped(opened, tmp_path, how):
    """As Ctrl-C leaves them between a pass and its count, and a tree at the end of the last answer."""
    text = list(range(5, 25))
    fresh, context = opened("target"), opened("target", 4, branches=2)
    for each in (fresh, context):
        each.decode(text[:10])
    if how == "interrupted":
        context.decode((7, 8, 9))
        context.length = 10
        del context.tokens[10:]
    else:
        context.grow((7, 8), (-1, -1))
        saved = context.save(tmp_path / "kept")
        assert context.load(tmp_path / "kept", saved) and context.cache.length == 10
    context.reuses = True
    assert context.begin(text) == 10
    assert np.allclose(context.decode(text[10:]), fresh.decode(text[10:]), atol=1e-3)


def test_an_aborted_decode_raises_and_the_prefix_stays(opened):
    own = Interrupt()
    context = opened("target", interrupt=own)
    context.decode((1, 2, 3))
    own.set()
    with pytest.raises(Interrupted):
        context.decode((4,) * 100)
    assert context.length == 3


def test_tokenize_and_pieces_are_inverse(load):
    target = load("target")
    text = "def naïve(x): return '🙂'\n\t# 数\n"
    tokens = target.tokenize(text)
    assert tokens[0] == 0, "this vocabulary begins with BOS"
    assert b"".join(target.piece(token) for token in tokens).decode() == text
    assert target.tokenize(text, add_bos=False) == tokens[1:]
    assert target.is_end(0) and not target.is_end(5)


def test_control_tokens_that_mark_thoughts_have_a_text(load, monkeypatch):
    target = load("target")
    name = target._piece(0, special=True)
    assert name and target._piece(0) == b""
    monkeypatch.setattr("specdec_cli.llama.model._SHOWN", (name,))
    assert target._piece(0) == name


def test_a_text_does_not_end_with_eos(load, tmp_path):
    model = gguf_models.Model(load("llama").path.read_bytes())
    model.set("tokenizer.ggml.add_eos_token", ggufs.BOOL, True)
    (tmp_path / "eos.gguf").write_bytes(model.raw())
    assert load(tmp_path / "eos.gguf").tokenize("x") == load("llama").tokenize("x")


def test_threads_that_ask_for_pieces_at_once_get_their_own(load, monkeypatch):
    target, tokens, write = load("target"), range(300, 332), lib.llama_token_to_piece
    expected = [target._piece(token) for token in tokens]

    def slow(*arguments):
        size = write(*arguments)
        sleep(0.01)
        return size

    monkeypatch.setattr(lib, "llama_token_to_piece", slow)
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(target._piece, tokens)] == expected
