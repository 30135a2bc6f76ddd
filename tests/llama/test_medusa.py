"""Medusa heads: what they compute, what is kept for them of each token, and files that hold something else."""

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
import tiny
from engines import loaded
from test_heads import PROMPT, TEXT, Opened, answered, both, halved, p_value_of_answers

from specdec_cli import IncompatiblePair, SamplingParams, SpecdecError, SpeculativeConfig
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.drafters.head_drafters import MedusaDrafter
from specdec_cli.gguf import memory
from specdec_cli.gguf.reader import read_header


@pytest.fixture
def target(load):
    return load("qwen3").path


def rows_of(context, text):
    """llama.cpp's embeddings and logits of each token of a text, asked of it directly."""
    context.rewind(0)
    lib.llama_set_embeddings(context.passes.handle, True)
    logits = context.decode(text, all_rows=True).copy()
    rows = np.ctypeslib.as_array(lib.llama_get_embeddings(context.passes.handle), (len(text), tiny.WIDTH)).copy()
    return rows, logits


def by_numpy(path, row):
    """(heads, words): what the heads of a file make of a row."""
    found = [tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name != "d2t"]
    tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in found}
    made = []
    for k in range(len(tensors) // 3):
        block, bias, output = (tensors[f"head.{k}.{part}"] for part in ("block.weight", "block.bias", "output.weight"))
        inner = block @ row + bias
        made.append(output @ (row + inner / (1 + np.exp(-inner))))
    return np.array(made)


def written(path, outputs, kind=gguf.GGMLQuantizationType.F32, **changes):
    """A file of heads. outputs: of each the output matrix. changes: settings and tensors, by name; None: left out."""
    rng = np.random.default_rng(3)
    model = tiny._Model(path, "medusa", 0, 0.0, words=False)
    settings, tensors = {"heads": len(outputs)}, {}
    for k, output in enumerate(outputs):
        tensors[f"head.{k}.block.weight"] = rng.standard_normal((tiny.WIDTH, tiny.WIDTH)) / tiny.WIDTH**0.5
        tensors[f"head.{k}.block.bias"] = rng.standard_normal(tiny.WIDTH)
        tensors[f"head.{k}.output.weight"] = output
    for name, value in changes.items():
        (tensors if "." in name or name == "d2t" else settings)[name] = value
    for name, value in settings.items():
        model.writer.add_key_value(f"medusa.{name}", value, gguf.GGUFValueType.UINT32)
    for name, value in tensors.items():
        if value is not None and value.dtype != np.float64:
            model.writer.add_tensor(name, value)
        elif value is not None:
            type_ = kind if value.ndim == 2 else gguf.GGMLQuantizationType.F32
            model.writer.add_tensor(name, gguf.quantize(value.astype(np.float32), type_), raw_dtype=type_)
    model.close()
    return path


def random_outputs(count=2, words=tiny.N_VOCAB):
    rng = np.random.default_rng(4)
    return [rng.standard_normal((words, tiny.WIDTH)) for _ in range(count)]


def fitted(path, rows, logits):
    """Heads that make of these rows, (n, width), nearly these logits, (n, words) of each head."""
    outputs = [np.linalg.lstsq(rows, wanted, rcond=None)[0].T for wanted in logits]
    still = {f"head.{k}.block.{part}": np.zeros(shape) for k in range(len(logits))
             for part, shape in (("weight", (tiny.WIDTH, tiny.WIDTH)), ("bias", tiny.WIDTH))}  # fmt: skip
    return written(path, outputs, **still)


# What they compute


@pytest.mark.parametrize("kind", ["medusa", "medusa-few", "q8_0"])
def test_rows_are_those_of_the_heads_formula(opened, tmp_path, kind):
    """On llama.cpp's embedding of the token before the pending one, which its output matrix makes logits of."""
    head = written(tmp_path / "q8_0.gguf", random_outputs(3), gguf.GGMLQuantizationType.Q8_0)
    parts = Opened(tmp_path, kind.replace("q8_0", "medusa"), head=head if kind == "q8_0" else None)
    parts.read(TEXT[:20])
    found = parts.drafts._rows.copy()
    rows, logits = rows_of(opened("qwen3", 20), TEXT[:20])
    wanted = by_numpy(tmp_path / f"{kind}.gguf", rows[-2])
    words = np.arange(0, tiny.N_VOCAB, 2) if kind == "medusa-few" else np.arange(tiny.N_VOCAB)
    assert parts.drafts.longest == len(wanted) and np.isfinite(found).sum() == wanted.size
    assert np.abs(found[:, words] - wanted).max() < (0.3 if kind == "q8_0" else 1e-4)
    output = next(t.data for t in gguf.GGUFReader(tmp_path / "target.gguf").tensors if t.name == "output.weight")
    assert np.abs(output @ rows[-2] - logits[-2]).max() < 1e-4
    parts.close()


def test_each_depth_of_a_tree_has_a_head_of_its_own(tmp_path):
    opened = Opened(tmp_path, "medusa", branches=3)
    opened.read(TEXT[:20])
    opened.drafts.begin_draft()
    first = opened.drafts.grow((3, 4), (-1, -1)).copy()
    second = opened.drafts.grow((5, 6, 7), (0, 1, 2))
    assert np.array_equal(first, opened.drafts._rows[[1, 1]])
    assert np.array_equal(second, opened.drafts._rows[[2, 2, 3]])
    opened.drafts.keep(())
    opened.drafts.rewind(20)
    assert np.array_equal(opened.drafts.grow((3,), (-1,)), first[:1])
    opened.close()


# What is kept for them


def knowing(folder, context, misled):
    """What the target alone writes, and two heads that know it; those misled know most tokens as the second best."""
    with loaded(target=context.passes.model.path, threads=1, speculative=SpeculativeConfig(drafter="none")) as session:
        text = [*PROMPT, *session.generate(PROMPT, SamplingParams(max_tokens=60)).tokens]
    rows, _ = rows_of(context, text)
    wanted = np.zeros((2, len(text) - 3, tiny.N_VOCAB))
    for k, row in np.ndindex(wanted.shape[:2]):
        token = text[row + 2 + k]
        wanted[k, row, token] = 20
        if k in misled and row % 3:
            wanted[k, row, (token + 7) % tiny.N_VOCAB] = 22
    return text[len(PROMPT) :], fitted(folder / "fitted.gguf", rows[:-3], wanted)


@pytest.mark.parametrize(("kind", "k", "tree"), [("qwen3", 6, 2), ("qwen3", 6, 4), ("mamba", 3, 1), ("mamba", 12, 1)])
def test_drafts_go_on_after_whatever_stands(opened, load, tmp_path, kind, k, tree):
    """But for the first step, all have a draft: of a branch that is read again the rows are known before, and those of
    a recurrent state that is restored are made again.
    """
    target = load(kind).path
    text, head = knowing(tmp_path, opened(kind, 100), misled=(0, 1) if tree > 1 else (1,))
    with loaded(target=target, draft=head, threads=1, speculative=SpeculativeConfig("medusa", k, tree=tree)) as session:
        answer = session.generate(PROMPT, SamplingParams(max_tokens=40))
    assert answer.tokens == text[:40]
    first, *steps = answer.metrics.history[1:-1]
    assert not first.drafted and all(step.drafted for step in steps) and answer.metrics.accepted > 8
    part = [step for step in steps if 0 < step.accepted < len(step.drafted)]
    assert any(step.path is None or step.path[0] > 0 for step in part), "a part, or another branch than the first"


# Distributions


def known_ahead(context, top_k):
    """Rows and logits, of two heads, after the prompt and each continuation by up to two tokens: the target's own
    distribution two tokens ahead.
    """
    sampler = StandardSampler(SamplingOptions(1.0, top_k=top_k, top_p=1.0, min_p=0.0))
    sampler.follow([])
    rows, wanted = [], []

    def visit(text, depth):
        made, logits = rows_of(context, text)
        p, mixed = sampler.categorical(logits[-1]), np.full(tiny.N_VOCAB, 1e-3)
        for token in p.ids.tolist():
            after = visit([*text, token], depth + 1) if depth < 3 else None
            if after is not None:
                mixed[after.ids] += p.prob(token) * after.probs
        if depth < 3:
            rows.append(made[-1])
            wanted.append(np.log(mixed))
        return p

    visit(list(PROMPT), 0)
    return np.array(rows), np.array([wanted, wanted])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "wrong"), [(1, False), (2, False), (1, True)])
def test_sampled_answers_have_the_targets_distribution(opened, tmp_path, target, width, wrong, monkeypatch):
    """By chi-square, with heads that know much; and a q that is another than the one drawn from is seen."""
    head = fitted(tmp_path / "fitted.gguf", *known_ahead(opened("qwen3", 100), 3))
    how = SpeculativeConfig("medusa", 2, accept="rejection", tree=width)
    with loaded(target=target, draft=head, threads=1, speculative=how) as session:
        if wrong:
            own = MedusaDrafter.propose
            monkeypatch.setattr(MedusaDrafter, "propose", lambda *given: halved(own(*given)))
        found, accepted = p_value_of_answers(session, how, top_k=3, length=4, n=900)
    assert accepted > 900 / 4 and (found > 1e-3) != wrong


# What cannot draft


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 1 << 20}, "claims 1048576 heads"),
        ({"heads": 3}, "lacks head.2.block.weight"),
        ({"head.1.block.bias": np.zeros(31)}, "head.1.block.bias is 31 of F32, not 32"),
        ({"head.0.output.weight": np.zeros((299, 32))}, "head.0.output.weight is 32 x 299 of F32, not 32 x 300"),
        ({"head.0.block.weight": np.zeros((32, 32), np.int32)}, "which ggml cannot compute with"),
        ({"head.0.block.bias": np.zeros(32, np.float16)}, "which ggml cannot compute with"),
        ({"d2t": np.arange(300, dtype=np.int32)}, "d2t is 300 of I32, not a table of token ids"),
        ({"d2t": np.arange(301, dtype=np.int64)}, "d2t is 301 of I64, not a table of token ids"),
        ({"d2t": np.arange(-1, 299, dtype=np.int64)}, "duplicates, or ids outside 0 to 299"),
        ({"d2t": np.arange(300, dtype=np.int64) // 2}, "duplicates, or ids outside 0 to 299"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, target, changes, said):
    head = written(tmp_path / "head.gguf", random_outputs(), **changes)
    with pytest.raises(SpecdecError, match=said) as refused:
        loaded(target=target, draft=head)
    assert refused.value.hint


def test_heads_of_another_width(tmp_path, target):
    head = written(tmp_path / "head.gguf", random_outputs())
    other = gguf.GGUFReader(head, "r+")
    other.fields["medusa.embedding_length"].parts[-1][0] = 64
    del other
    with pytest.raises(IncompatiblePair, match="fits a hidden size of 64"):
        loaded(target=target, draft=head)


def test_a_target_that_gives_no_logits_beside_its_rows(load, tmp_path):
    head = tiny.write(tmp_path / "head.gguf", "medusa")
    assert "hidden rows together with its logits" in answered(load("lfm2").path, head, drafter="medusa")


@pytest.mark.parametrize(("kind", "k"), [("mamba", 3), ("qwen35", 3), ("qwen35", 12), ("olmo2-window", 12)])
def test_any_other_target_has_its_own_text(load, tmp_path, kind, k):
    """Recurrent ones, too, whose states go back by a snapshot or by a replay."""
    head = tiny.write(tmp_path / "head.gguf", "medusa")
    with loaded(target=load(kind).path, draft=head, threads=1, speculative=SpeculativeConfig("medusa", k)) as session:
        drafted, alone = both(session, SamplingParams(max_tokens=24), SpeculativeConfig("medusa", k))
    assert drafted == alone


def test_memory_is_that_of_the_file(tmp_path):
    head = tiny.write(tmp_path / "head.gguf", "medusa")
    assert memory.footprint(read_header(head), 4096).total == head.stat().st_size
