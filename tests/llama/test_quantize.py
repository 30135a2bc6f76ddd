"""Copies by llama.cpp's quantiser: what comes out computes what it should, and what goes wrong stays in its process."""

import signal
from contextlib import closing

import ggufs
import numpy as np
import pytest
import tiny
from driver import DEMO

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import quantize
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.quantize import Copy
from specdec_cli.make_drafts import quantize as quantisations
from specdec_cli.make_drafts.prune import SkippableCopy

TARGET = DEMO / "target.gguf"
TOKENS = list(range(3, 40, 2))


def logits(path):
    interrupt = Interrupt()
    with (
        closing(Model(path, Placement(0), interrupt)) as model,
        closing(LlamaContext.open(model, 256, len(TOKENS), 1, interrupt)) as context,
    ):
        return context.decode(TOKENS, all_rows=True).copy()


def prune(source, out, drop):
    """Drop layers; returns that, and the numbers of the tensors as they were begun."""
    begun = []
    assert quantize.write(Copy(source, out, 1, drop), Interrupt(), begun.append) == []
    return out, begun


def skipping(source, path, layers, drop):
    path.write_bytes(source.read_bytes())
    copy = SkippableCopy(path, layers)
    for layer in drop:
        copy.drop(layer)
    return path


@pytest.mark.parametrize("drop", [(0,), (1, 3), (0, 1, 2, 3, 5)])
def test_a_pruned_copy_computes_what_the_target_does_without_those_layers(tmp_path, drop):
    pruned, begun = prune(TARGET, tmp_path / "pruned.gguf", drop)
    made = read_header(pruned)
    assert made.setting("block_count") == 6 - len(drop) and begun == list(range(1, len(made.tensors) + 1))
    skipped = logits(skipping(TARGET, tmp_path / "skipping.gguf", 6, drop))
    assert np.array_equal(logits(pruned), skipped)
    assert not np.allclose(skipped, logits(TARGET), atol=0.1)


def test_another_architecture_and_a_layer_switched_off_for_a_while(tmp_path):
    source = tiny.write(tmp_path / "tiny.gguf", "qwen3")
    pruned, _ = prune(source, tmp_path / "pruned.gguf", (1, 2))
    path = skipping(source, tmp_path / "skipping.gguf", 5, (1,))
    before = logits(path)
    with SkippableCopy(path, 5).without(2):
        assert np.array_equal(logits(path), logits(pruned)) and not np.array_equal(logits(path), before)
    assert np.array_equal(logits(path), before)


def test_a_split_target_becomes_one_file(tmp_path):
    parts = ggufs.split(TARGET, tmp_path, 20)
    assert len(parts) > 2
    pruned, _ = prune(parts[0], tmp_path / "pruned.gguf", (2, 4))
    assert np.array_equal(logits(pruned), logits(skipping(TARGET, tmp_path / "skipping.gguf", 6, (2, 4))))


def test_rows_that_do_not_fit_a_type_are_told(tmp_path):
    copy = Copy(TARGET, tmp_path / "small.gguf", 1, file_type=quantisations.find_type("Q2_K")[1])
    unfit = quantize.write(copy, Interrupt(), lambda _: None)
    assert {(found.columns, found.wanted, found.got) for found in unfit} == {
        (320, "Q2_K", "Q4_0"),
        (320, "Q3_K", "Q4_0"),
        (896, "Q3_K", "Q4_0"),
    }
    made = read_header(tmp_path / "small.gguf")
    assert sum(tensor.type == "Q4_0" for tensor in made.tensors) == len(unfit) and made.quantisation == "Q2_K"
    assert np.isfinite(logits(tmp_path / "small.gguf")).all()


@pytest.mark.slow
def test_which_types_llama_cpp_makes(tmp_path, monkeypatch):
    """On rows that every type fits. All that is offered, and nothing that is refused."""
    monkeypatch.setattr(tiny, "WIDTH", 256)
    monkeypatch.setattr(tiny, "FEED_FORWARD", 256)
    source = tiny.write(tmp_path / "wide.gguf", "llama")
    out = tmp_path / "out.gguf"

    def write(number):
        quantize.write(Copy(source, out, 1, file_type=number), Interrupt(), lambda _: None)

    for name in quantisations.type_names():
        write(quantisations.find_type(name)[1])
        made = read_header(out)
        assert made.quantisation == name
        in_most = made.data_offset + made.n_params * quantisations.bits_of(name) / 8
        assert 0.9 * in_most < made.size < 2 * in_most + 300_000, name
    refused = [*quantisations._NEED_MATRIX, *quantisations._NOT_MADE]
    assert len(refused) == 10
    for number, name in quantisations.QUANTISATIONS.items():
        assert (name in refused) == (name not in quantisations.type_names())
        if name in refused:
            with pytest.raises(SpecdecError):
                write(number)


def test_an_abort_of_llama_cpp_stays_in_its_process(tmp_path):
    bad = ggufs.with_keys(
        TARGET,
        tmp_path / "bad.gguf",
        ggufs.key("llama.expert_count", ggufs.U32, (2).to_bytes(4, "little")),
        ggufs.key("llama.expert_used_count", ggufs.U32, (3).to_bytes(4, "little")),
    )
    with pytest.raises(SpecdecError, match=r"GGML_ASSERT.*n_expert"):
        prune(bad, tmp_path / "out.gguf", (1,))


def test_what_llama_cpp_refuses_is_told(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(TARGET.read_bytes()[:-1000])
    with pytest.raises(SpecdecError, match=r"cannot copy cut.gguf: .*not within the file bounds"):
        prune(tmp_path / "cut.gguf", tmp_path / "out.gguf", (1,))
    with pytest.raises(SpecdecError, match=r"cannot copy target.gguf"):
        prune(TARGET, tmp_path / "no folder" / "out.gguf", (1,))


def test_an_interrupt_ends_the_process(tmp_path, monkeypatch, started):
    """Here one that never ends by itself: a real one takes milliseconds."""
    monkeypatch.setattr(quantize, "_CHILD", "import time; print('[ 1/ 9] a tensor', flush=True); time.sleep(99)")
    interrupt = Interrupt()
    with pytest.raises(Interrupted):
        quantize.write(Copy(TARGET, tmp_path / "out.gguf", 1, (1,)), interrupt, lambda _: interrupt.set())
    assert [process.returncode for process in started] == [-signal.SIGKILL]
