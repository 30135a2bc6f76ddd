"""Drafts that learn from a target, on tiny models. It takes PyTorch: `make test-training`."""

import hashlib
import pickle
import random
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import ggufs
import numpy as np
import pytest
import tiny
from driver import DRAFT, TARGET, call, specdec, start
from full_disk import full_disk

from specdec_cli import SamplingParams, SpecdecError, SpeculativeConfig, load
from specdec_cli.decoding.errors import Interrupted, UsageError
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.make_drafts import training_run as draft_training
from specdec_cli.make_drafts.recipe import (
    DistilRecipe,
    Eagle3Recipe,
    ExitRecipe,
    MedusaRecipe,
    ScratchRecipe,
    TrainingOptions,
    TrainingPlace,
)
from specdec_cli.make_drafts.target_texts import LIKELIEST, RecordedText

pytestmark = pytest.mark.training

PROMPTS = [f"def f{i}(a, b):\n    return " + "the other " * (i % 3) for i in range(20)]
KINDS = {
    "eagle3": (Eagle3Recipe(), "eagle3"),
    "medusa": (MedusaRecipe(heads=3), "medusa"),
    "exit": (ExitRecipe(layers_kept=3), "self"),
    "scratch": (ScratchRecipe(words=200), "model"),
    "distil": (None, "model"),
}


class Silent:
    """Notes what a training says of itself."""

    def __init__(self):
        self.steps, self.plan = [], None

    def recording(self, done, wanted, seconds_left): ...

    def planned(self, steps, step_s, bytes_):
        self.plan = (steps, step_s, bytes_)

    def training(self, progress):
        self.steps.append(progress)

    def stopped(self, out):
        self.out = out

    def measuring(self, what): ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target of five layers, a draft for it, and prompts."""
    folder = tmp_path_factory.mktemp("training")
    tiny.write(folder / "target.gguf", "qwen3")
    tiny.write(folder / "draft.gguf", "qwen3", noise=0.5)
    (folder / "prompts.txt").write_text("\n".join(prompt.replace("\n", " ") for prompt in PROMPTS))
    return folder


def options(folder, name, **changes):
    given = TrainingOptions(
        target=str(folder / "target.gguf"),
        out=folder / f"{name}.gguf",
        prompts=str(folder / "prompts.txt"),
        tokens=2000,
        longest=48,
        steps=300 if name == "scratch" else 60,
        window=64,
        threads=1,
        force=True,
    )
    return replace(given, **changes)


def recipe_of(folder, kind):
    return KINDS[kind][0] or DistilRecipe(folder / "draft.gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_learns_and_drafts_for_its_target(folder, kind, monkeypatch):
    said, use = Silent(), KINDS[kind][1]
    result = draft_training.train_draft(recipe_of(folder, kind), options(folder, kind), said, Interrupt())
    assert result.kind == kind and result.bytes == (folder / f"{kind}.gguf").stat().st_size
    assert said.plan[0] == said.steps[-1].step and said.plan[2] > 1 << 20
    first, last = said.steps[0], said.steps[-1]
    assert last.loss < first.loss
    assert max(last.best) > 0.2 and result.agreement == last.best
    overall = result.after.categories[-1]
    assert overall.tokens_per_pass > 1.0 and 0 < overall.by_place[0] <= 1
    assert result.after.expected[0].machine == "here"
    if kind == "exit":  # the layers are the same; what they say has become better
        assert overall.by_place[0] >= result.before.categories[-1].by_place[0]
    way = SpeculativeConfig(use, draft_tokens=3, tree=2 if kind == "medusa" else 1)
    with load(target=folder / "target.gguf", draft=folder / f"{kind}.gguf", threads=1, speculative=way) as engine:
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=40)
            drafted = engine.generate(PROMPTS[0], sampling)
            assert drafted.metrics.drafted > 0, drafted.notes
            assert drafted.tokens == engine.generate(PROMPTS[0], sampling, SpeculativeConfig("none")).tokens


def test_the_files_hold_what_pytorch_computes(folder):
    """llama.cpp's logits of every kind of decoder, float32 but for the cache."""
    import torch

    from specdec_cli.make_drafts.training.decoder import shape_of
    from specdec_cli.make_drafts.training.draft_decoder import DraftStudent
    from training.check import Reader

    for kind in ("qwen3", "llama"):
        path = tiny.write(folder / f"{kind}-plain.gguf", kind)
        student = DraftStudent(path, shape_of(read_header(path)), lora=False)
        tokens = [1 + 7 * i % 290 for i in range(50)]
        with torch.no_grad():
            mine = student.model.logits(student.model(torch.tensor([tokens])))[0].numpy()
        reader = Reader(path)
        theirs = reader.rows(tokens)
        reader.close()
        assert np.linalg.norm(mine - theirs) < 0.01 * np.linalg.norm(theirs), kind


def test_an_exit_of_a_target_with_one_matrix_for_both_ends_gets_its_own(folder, tmp_path):
    """Which then says what training found: the file agrees with the target as often as the student did."""
    asked = options(folder, "tied", target=str(TARGET), prompts="python", out=tmp_path / "tied.gguf", steps=250)
    assert all(tensor.name != "output.weight" for tensor in read_header(TARGET).tensors)
    result = draft_training.train_draft(ExitRecipe(layers_kept=4), asked, Silent(), Interrupt())
    assert any(tensor.name == "output.weight" for tensor in read_header(asked.out).tensors)
    before, after = result.before.categories[-1], result.after.categories[-1]
    assert after.by_place[0] > before.by_place[0] + 0.02


def test_lora_changes_little_and_is_merged(folder):
    from specdec_cli.make_drafts.training.decoder import shape_of
    from specdec_cli.make_drafts.training.draft_decoder import DraftStudent
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights
    from specdec_cli.make_drafts.training.students import trained

    path = folder / "draft.gguf"
    student = DraftStudent(path, shape_of(read_header(path)), lora=True)
    assert all(name.endswith((".a", ".b")) for name, _ in trained(student.model))
    student.model.blk[0].attn_q.b.data += 0.1
    merged = folder / "merged.gguf"
    student.write(merged)
    before, after = GgufWeights(path), GgufWeights(merged)
    assert before.names == after.names
    for name in before.names:
        same = np.array_equal(before.read(name), after.read(name))
        assert same == (name != "blk.0.attn_q.weight"), name


def test_a_draft_with_less_padding_than_its_target_learns(folder):
    import torch

    from specdec_cli.make_drafts.training.decoder import shape_of
    from specdec_cli.make_drafts.training.draft_decoder import DraftStudent
    from specdec_cli.make_drafts.training.windows import TextBatch

    path = folder / "draft.gguf"
    student = DraftStudent(path, shape_of(read_header(path)), lora=False)
    tokens, none = torch.tensor([[1, 2, 3]]), torch.zeros(1, 3, 0)
    likeliest, log_p = (torch.tensor(row).expand(1, 3, 3) for row in ([5, 9, tiny.N_VOCAB + 7], [-1.0, -2.0, -3.0]))
    known = torch.ones(1, 3, dtype=torch.bool)
    with torch.no_grad():
        loss = student.loss(TextBatch(tokens, likeliest, log_p, none, none, known))
        own = student.loss(TextBatch(tokens, likeliest[..., :2], log_p[..., :2], none, none, known))
    assert loss == own > 0


def command(folder, out, *more):
    target, prompts = (folder / name for name in ("target.gguf", "prompts.txt"))
    given = ["draft", "eagle3", "-m", target, "-o", out, "--prompts", prompts]
    return [*given, "--tokens", "1500", "-n", "32", "--steps", "150", "--force", *more]


def test_a_run_that_was_killed_ends_with_the_same_file(folder, tmp_path):
    dice, digests = random.Random(5), []
    for name, kills in (("whole", 0), ("killed", 3)):
        out = tmp_path / name / "head.gguf"
        out.parent.mkdir()
        for _ in range(kills):
            process = start(*command(folder, out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(dice.uniform(2.0, 9.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
        ended = specdec(*command(folder, out), timeout=600)
        assert ended.returncode == 0, ended.stderr.decode()
        digests.append(hashlib.sha256(out.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def test_ctrl_c_keeps_the_best_so_far_and_the_same_command_goes_on(folder):
    class Stopping(Silent):
        def training(self, progress):
            super().training(progress)
            if progress.step == 30:
                interrupt.set()

    interrupt, asked, stopping = Interrupt(), options(folder, "stopped", force=False), Stopping()
    with pytest.raises(Interrupted):
        draft_training.train_draft(Eagle3Recipe(), asked, stopping, interrupt)
    assert stopping.out == "stopped.gguf"
    assert read_header(asked.out).architecture == "eagle3"
    said = Silent()
    draft_training.train_draft(Eagle3Recipe(), asked, said, Interrupt())
    assert said.steps[0].step == 31 and said.plan is None
    whole = options(folder, "unstopped")
    draft_training.train_draft(Eagle3Recipe(), whole, Silent(), Interrupt())
    assert whole.out.read_bytes() == asked.out.read_bytes()


@pytest.fixture
def briefly(folder, tmp_path, monkeypatch):
    """Trains for three steps, in a shared work folder. The drafts that would be measured are the figures."""

    def train(recipe, name="own", **changes):
        said, asked = Silent(), options(folder, name, tokens=1000, longest=16, steps=3)
        asked = replace(asked, out=tmp_path / f"{name}.gguf", folder=tmp_path / "work", **changes)
        return draft_training.train_draft(recipe, asked, said, Interrupt()), [step.step for step in said.steps]

    monkeypatch.setattr(draft_training, "draft_figures", lambda settings, *_: settings.draft)
    return train


def test_a_work_folder_serves_other_recipes_and_a_changed_target(briefly, folder, tmp_path):
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

    (tmp_path / "config").write_text("no folder")
    target, work = tiny.write(tmp_path / "target.gguf", "qwen3"), tmp_path / "work"
    draft = tmp_path / "draft.gguf"
    others = (MedusaRecipe(heads=1), MedusaRecipe(), DistilRecipe(draft), DistilRecipe(draft), ExitRecipe(2))
    for number, recipe in enumerate((*others, ExitRecipe(3))):
        tiny.write(draft, "qwen3", noise=number / 10)
        result, steps = briefly(recipe, target=str(target), before=str(folder / "draft.gguf"))
        assert steps == [1, 2, 3] and result.before == str(folder / "draft.gguf")
        assert any("name it with -md" in note for note in result.notes) == isinstance(recipe, ExitRecipe)
    tiny.write(target, "qwen3", seed=1)
    with pytest.raises(SpecdecError, match="another target") as refusal:
        briefly(ExitRecipe(3), target=str(target))
    assert refusal.value.hint.startswith(f"Remove {work}, ")
    for part in ("answers", "held-out"):
        shutil.rmtree(work / part)
    for recipe in (MedusaRecipe(), ExitRecipe(3)):
        assert briefly(recipe, "new", target=str(target))[1] == [1, 2, 3]
    copied, own = (GgufWeights(path).read("blk.2.attn_q.weight") for path in (tmp_path / "new.gguf", target))
    assert np.array_equal(copied, own)


def test_a_file_is_overwritten_only_by_its_own_training(briefly, tmp_path):
    briefly(MedusaRecipe(heads=1), force=False)
    other, own = tmp_path / "other.gguf", tmp_path / "own.gguf"
    other.write_bytes(b"precious")
    with pytest.raises(UsageError, match="already exists"):
        briefly(MedusaRecipe(heads=1), "other", force=False)
    assert other.read_bytes() == b"precious"
    made = own.read_bytes()
    assert briefly(MedusaRecipe(heads=1), force=False)[1] == [] and own.read_bytes() == made
    with pytest.raises(UsageError, match="already exists"):
        briefly(MedusaRecipe(heads=1), force=False, lr=0.001)
    assert own.read_bytes() == made
    next((tmp_path / "work").glob("own-*.pt")).write_bytes(b"damaged")
    with pytest.raises(pickle.UnpicklingError):
        briefly(MedusaRecipe(heads=1), force=False)
    assert own.read_bytes() == made


def test_a_split_model_is_read_from_all_its_files(folder, tmp_path):
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

    first, *others = ggufs.split(folder / "target.gguf", tmp_path, 20)
    whole, parts = GgufWeights(folder / "target.gguf"), GgufWeights(first)
    assert others and parts.names == whole.names
    assert all(np.array_equal(parts.read(name), whole.read(name)) for name in whole.names)


def test_a_draft_with_tensors_that_training_does_not_compute_is_refused(folder, tmp_path):
    from specdec_cli.make_drafts.training.decoder import shape_of
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite

    biased, name = tmp_path / "biased.gguf", "blk.1.attn_output.bias"
    rewrite(biased, GgufWeights(folder / "draft.gguf"), {name: np.ones(tiny.WIDTH)}, "biased")
    with pytest.raises(SpecdecError, match=f"it has the tensor {name}") as refusal:
        shape_of(read_header(biased))
    assert refusal.value.hint


def test_an_exit_scales_the_bias_of_its_norm(folder, tmp_path):
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite
    from specdec_cli.make_drafts.training.heads import ExitStudent

    biased, out = tmp_path / "biased.gguf", tmp_path / "exit.gguf"
    rewrite(biased, GgufWeights(folder / "target.gguf"), {"output_norm.bias": np.ones(tiny.WIDTH)}, "biased")
    student = ExitStudent(biased)
    student.model.gain.data *= 2
    student.write(out)
    assert (GgufWeights(out).read("output_norm.bias") == 2).all()


def refused(folder, recipe, **changes):
    with pytest.raises(SpecdecError) as error:
        draft_training.train_draft(recipe, options(folder, "refused", **changes), Silent(), Interrupt())
    assert error.value.hint and not (folder / "refused.gguf").exists()
    return f"{error.value} {error.value.hint}"


def test_what_cannot_be_trained_is_refused_in_two_lines(folder, monkeypatch):
    flat = tiny.write(folder / "olmo2.gguf", "olmo2-window")
    assert "hidden rows that eagle3 reads" in refused(folder, Eagle3Recipe(), target=str(flat))
    few = tiny.write(folder / "few.gguf", "llama")
    assert "needs a target of at least 4 layers" in refused(folder, Eagle3Recipe(), target=str(few))
    assert "have different tokenizers" in refused(folder, DistilRecipe(DRAFT))
    assert "cannot be kept" in refused(folder, ExitRecipe(layers_kept=5))
    assert "there are no saved conversations" in refused(folder, MedusaRecipe(), prompts="conversations")
    monkeypatch.setattr(draft_training.shutil, "disk_usage", lambda _: type("Disk", (), {"free": 10})())
    assert "are needed in" in refused(folder, MedusaRecipe())


def test_too_little_time_or_memory_is_said_before(folder, monkeypatch):
    assert "too few to learn anything" in refused(folder, Eagle3Recipe(), steps=None, minutes=1e-5)
    monkeypatch.setattr(draft_training.host, "available_memory", lambda: 1000)
    assert "of memory" in refused(folder, ScratchRecipe())


def test_the_command_shows_a_page(folder, tmp_path):
    out = tmp_path / "head.gguf"
    result = call(*command(folder, out, "--what-if", "rtx-4090", "--against", folder / "draft.gguf"))
    assert result.exit_code == 0, result.output
    for said in ("head.gguf", "tokens/step", "rtx-4090", "draft.gguf", "Use it:\nspecdec run"):
        assert said in result.output, said


def test_a_distilled_file_does_not_keep_a_type_that_its_tensors_lost(folder, tmp_path):
    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite

    named = ggufs.key("general.file_type", ggufs.U32, (15).to_bytes(4, "little"))
    source = ggufs.with_keys(folder / "draft.gguf", tmp_path / "named.gguf", named)
    assert read_header(source).quantisation == "Q4_K_M"
    rewrite(tmp_path / "out.gguf", GgufWeights(source), {}, "out")
    assert read_header(tmp_path / "out.gguf").quantisation == read_header(folder / "draft.gguf").quantisation


def test_a_distilled_file_is_read_with_the_alignment_that_it_was_written_with(folder, tmp_path):
    import gguf

    from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite

    plain, writer = GgufWeights(folder / "draft.gguf"), gguf.GGUFWriter(tmp_path / "aligned.gguf", "qwen3")
    plain.copy_settings(writer, ("general.", "tokenizer.", "qwen3."))
    writer.add_custom_alignment(64)
    for name in plain.names:
        writer.add_tensor(name, plain.read(name))
    ggufs.finish(writer)
    rewrite(tmp_path / "out.gguf", GgufWeights(tmp_path / "aligned.gguf"), {}, "out")
    copied = GgufWeights(tmp_path / "out.gguf")
    assert all(np.array_equal(copied.read(name), plain.read(name)) for name in plain.names)
    assert read_header(copied.path).metadata.get("general.alignment", 32) == 32


def test_training_that_only_makes_a_draft_worse_changes_nothing(briefly, folder, tmp_path):
    draft = shutil.copy(folder / "target.gguf", tmp_path / "draft.gguf")
    result, _ = briefly(DistilRecipe(draft), lr=0.9)
    assert result.agreement[0] > 0.95


def test_a_new_draft_states_the_context_that_it_was_trained_on(briefly, tmp_path):
    briefly(ScratchRecipe(words=200), "new")
    assert read_header(tmp_path / "new.gguf").count("context_length") == 64


def test_a_draft_too_large_for_the_gpu_is_trained_on_the_processor(monkeypatch):
    import torch

    from specdec_cli.make_drafts.training import trainer

    model = torch.nn.Linear(8, 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 1000))
    trainer._place(SimpleNamespace(model=model))
    assert model.weight.device.type == "cpu"


def test_on_a_full_disk_training_ends_in_two_lines_and_keeps_the_best(tmp_path):
    import torch

    from specdec_cli.make_drafts.training import trainer

    model, agreements = torch.nn.Linear(4, 4), iter([[1.0], [0.0]])
    best = model.weight.detach().clone()
    student = SimpleNamespace(
        model=model, loss=lambda batch: model(batch).square().mean(), agreement=lambda _: next(agreements)
    )
    texts = SimpleNamespace(random=lambda *_: torch.ones(2, 4), first=lambda _: torch.ones(2, 4))
    run = trainer.TrainingRun(student, trainer.TrainingPlan(1, 0.1, 1), tmp_path / "run.pt")
    with full_disk(0), pytest.raises(SpecdecError, match=r"cannot write .*run\.pt"):
        trainer.train(run, texts, texts, lambda: False, lambda _: None)
    assert torch.equal(model.weight, best) and not list(tmp_path.iterdir())


def test_the_bundled_pair_learns_from_texts_of_the_full_length(tmp_path):
    import torch

    from training import finetune

    pair = finetune.Pair(finetune.DEMO, 1.0, tmp_path / "none.pt")
    losses = pair.losses(*torch.zeros(2, 1, finetune.LENGTH, dtype=torch.long), draft=True)
    assert set(losses) == {"target", "draft"}


def test_drafts_that_read_longer_texts_train_on_them(folder, tmp_path):
    from specdec_cli.make_drafts.training.windows import Windows

    for length in (40, 500):
        likeliest, rows = np.zeros((length, LIKELIEST)), np.zeros((length, 0))
        RecordedText(np.arange(length), likeliest, likeliest, rows, 5).save(tmp_path / f"{length}.npz")
    header = read_header(folder / "target.gguf")
    place = TrainingPlace(folder / "target.gguf", header, tmp_path, 1, Interrupt(), window=64)
    recipes = DistilRecipe(folder / "draft.gguf"), Eagle3Recipe(), ScratchRecipe()
    assert [recipe.longest(place) for recipe in recipes] == [256, 256, 64]
    assert DistilRecipe(DRAFT).longest(replace(place, window=256)) == 256  # its context
    windows = Windows([tmp_path / "40.npz", tmp_path / "500.npz"], 64, 256)
    drawn = [windows.random(8, 1, step) for step in range(20)]
    assert {tuple(batch.tokens.shape) for batch in drawn} == {(8, 64), (2, 256)}
    assert windows.first(8).tokens[1].tolist() == [*range(436, 500)]


def test_the_result_has_the_notes_of_recording(briefly, monkeypatch):
    monkeypatch.setattr(draft_training.Session, "notes", ("noted",))
    notes = briefly(MedusaRecipe(heads=1), temperatures=(0.0,))[0].notes
    assert "noted" in notes and any("of the 1,000 tokens: give more" in note for note in notes)
