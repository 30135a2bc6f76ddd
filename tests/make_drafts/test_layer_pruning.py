"""Which models can lose layers, how layers are named, and how a search finds them."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from driver import TARGET

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, Tensor
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.make_drafts import prune as pruning
from specdec_cli.make_drafts.draft_copy import CopyOptions, ranges, require_copyable
from specdec_cli.make_drafts.prune import LayerSearch, layers_of, outlets, require_prunable
from specdec_cli.make_drafts.recipe import ExitRecipe, TrainingPlace
from specdec_cli.weights import model_loading

TENSORS = ("attn_norm.weight", "attn_output.weight", "ffn_down.weight")


def header(architecture="llama", layers=4, blocks=None, tensors=(), **settings) -> Header:
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.block_count": layers,
        **{f"{architecture}.{key.replace('__', '.')}": value for key, value in settings.items()},
    }
    names = [f"blk.{number}.{name}" for number in range(layers if blocks is None else blocks) for name in TENSORS]
    rows = [Tensor(name, (32, 32), "F32", 0, 4096) for name in ("token_embd.weight", *names, *tensors)]
    return Header("some.gguf", 3, metadata, tuple(rows), 1000, 1000 + 4096 * len(rows))


def test_what_can_lose_layers():
    assert require_prunable(header(attention__sliding_window=4096)) == 4  # Mistral's, which llama.cpp does not heed
    assert require_prunable(header(rope__dimension_sections=np.array([1, 2, 3], "i4"))) == 4


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (header(layers=1), "none can be left out"),
        (header(attention__head_count_kv=np.array([1, 2, 1, 2], "u4")), "attention.head_count_kv has a value for each"),
        (header("llama4"), "in llama4 models they may depend"),
        (header("gemma2", attention__sliding_window=4096), "have a sliding window"),
        (header("deepseek2", leading_dense_block_count=1), "first of them are of a different kind"),
        (header("glm4", nextn_predict_layers=1), "predict tokens further ahead"),
        (header("qwen3next", ssm__conv_kernel=4), "keep a state"),
        (header("lfm2", shortconv__l_cache=3), "keep a state"),
        (header("rwkv7", wkv__head_size=64), "keep a state"),
        (header(blocks=3), "tensors for 3 layers, not 4"),
        (header(tensors=["blk.2.attn_q.bias"]), "layer 2 has other tensors than layer 0"),
    ],
)
def test_what_cannot(model, why):
    with pytest.raises(SpecdecError, match="left out") as caught:
        require_prunable(model)
    assert why in str(caught.value) and "specdec draft quantize" in caught.value.hint


def test_another_alignment_would_be_written_wrongly():
    model = header()
    model.metadata["general.alignment"] = 4096
    with pytest.raises(SpecdecError, match="aligned to 4096 bytes"):
        require_copyable(model)


@pytest.mark.parametrize(("text", "layers"), [("0-2,5", (0, 1, 2, 5)), (" 3 , 1 - 2,2-2", (1, 2, 3))])
def test_layers_by_name(text, layers):
    assert layers_of(text, 6) == layers and layers_of(ranges(layers), 6) == layers


@pytest.mark.parametrize(
    ("text", "says"),
    [("0-", "'0-'"), ("99999", "'99999'"), ("1,,2", "''"), ("7-3", "goes backwards"), ("0-6", "no layer 6"),
     ("5,0-4", "all 6 layers")],
)  # fmt: skip
def test_layers_that_there_are_not(text, says):
    with pytest.raises(UsageError, match=r"layer") as caught:
        layers_of(text, 6)
    assert says in str(caught.value) and caught.value.hint


def test_the_outlets_of_a_layer_of_experts():
    mixture = header(tensors=["blk.1.ffn_down_exps.weight", "blk.1.ffn_down.3.weight", "blk.1.attn_output_norm.weight"])
    assert len(outlets(mixture, 1)) == 4


def test_a_search_drops_only_a_layer_that_it_has_just_tried(monkeypatch, tmp_path):
    """Without layer 0, layer 1 is worth more than before; what layer 2 was worth with it no longer counts."""
    agreement, off = {(0,): 0.9, (1,): 0.8, (2,): 0.7, (3,): 0.6, (0, 1): 0.1}, set()

    @contextmanager
    def without(layer):
        off.add(layer)
        yield
        off.remove(layer)

    copy = SimpleNamespace(drop=off.add, without=without)
    answers = SimpleNamespace(texts=[], n_tokens=0, agreement=lambda *_: agreement.get(tuple(sorted(off)), 1.0))
    monkeypatch.setattr(pruning, "SkippableCopy", lambda *_: copy)
    monkeypatch.setattr(pruning, "_Answers", lambda *_: answers)
    monkeypatch.setattr(pruning, "_TRIED", 1)
    options = CopyOptions("some.gguf", tmp_path / "out.gguf")
    job = SimpleNamespace(folder=tmp_path, header=header(), options=options, write=lambda n: (tmp_path / n).touch())
    assert [step.dropped for step in pruning._search(job, LayerSearch(2), 4)] == [None, 0, 1]


@pytest.mark.slow
def test_a_search_tries_its_copy_in_one_child(monkeypatch, tmp_path):
    tried, trial = [], model_loading.begin_load
    monkeypatch.setattr(model_loading, "begin_load", lambda path, *rest: tried.append(path.name) or trial(path, *rest))
    (tmp_path / "prompts.txt").write_text("class Point:\ndef merge(left, right):\nraise ValueError(f\n")
    options = CopyOptions(str(TARGET), tmp_path / "out.gguf", threads=1)
    made = pruning.prune(options, LayerSearch(5, str(tmp_path / "prompts.txt")))
    assert len(made.layers) == 5 and tried.count("whole.gguf") == 1


NORM = "output_norm.weight"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (header("gemma", tensors=[NORM]), "always that of its embeddings"),
        (header("olmo"), "its output norm has no weights"),
        (header("phi2", tensors=[NORM, "output.bias"]), "has a bias"),
        (header("granite", tensors=[NORM], logit_scale=8.0), "its logits are scaled"),
    ],
)
def test_what_has_no_early_exit(model, why):
    with pytest.raises(SpecdecError, match=r"early exit of some\.gguf") as caught:
        ExitRecipe(2).layers(TrainingPlace(Path("some.gguf"), model, Path(), 1, Interrupt()))
    assert why in str(caught.value) and "specdec draft distill" in caught.value.hint


def test_an_early_exit_copies_layers_with_the_threads_and_the_interrupt_of_its_training(monkeypatch, tmp_path):
    copied = []
    monkeypatch.setattr("specdec_cli.make_drafts.recipe.prune", lambda options, *_, **__: copied.append(options))
    place = TrainingPlace(TARGET, header(), tmp_path, 3, Interrupt())
    out = ExitRecipe(2).source(place)
    assert [(each.out, each.threads, each.interrupt) for each in copied] == [(out, 3, place.interrupt)]
