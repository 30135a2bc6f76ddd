"""What a target says and computes, kept to learn from; without PyTorch."""

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from driver import DEMO, DRAFT, TARGET
from engines import open_session
from full_disk import full_disk
from msgspec import json

from specdec_cli.chat.saved_conversations import CONVERSATIONS, SavedConversation, SavedMessage
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.make_drafts import draft_figures as making
from specdec_cli.make_drafts import target_texts, training_run
from specdec_cli.make_drafts.recipe import DistilRecipe, MedusaRecipe, ScratchRecipe, TrainingOptions, TrainingPlace
from specdec_cli.make_drafts.target_texts import (
    LIKELIEST,
    RecordedText,
    RowsWanted,
    TextsWanted,
    record_texts,
    training_prompts,
)
from specdec_cli.measure.suites import SuitePrompt
from specdec_cli.settings.settings import Settings

ROWS = RowsWanted("rows", (2, 3, 5))
WANTED = TextsWanted(90, 24, (0.0, 0.8))


@pytest.fixture(scope="module")
def session():
    with open_session(draft=None, drafter="none", max_tokens=24) as session:
        yield session


@pytest.fixture(scope="module")
def prompts(session):
    texts = ["def mean(values):", "import os\n\n\ndef read(path):", "class Stack:\n    def push(self, item):"]
    return {SuitePrompt(str(i), "code", text): session.tokenize(text) for i, text in enumerate(texts)}


@pytest.fixture(scope="module")
def recorded(session, prompts, tmp_path_factory):
    """A folder of texts, their paths, and what was told of the progress."""
    folder, told = tmp_path_factory.mktemp("texts"), []
    return folder, record_texts(session, prompts, WANTED, ROWS, folder, lambda *said: told.append(said)), told


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.np?"))}


def test_texts_hold_the_targets_distributions_and_rows(session, recorded):
    _, paths, told = recorded
    texts = [RecordedText.load(path) for path in paths]
    assert sum(len(text.tokens) - text.prompt for text in texts) >= 90 and told[-1][0] >= 90
    greedy = texts[0]
    assert greedy.likeliest.shape == (len(greedy.tokens), LIKELIEST) and greedy.rows.shape[1] == 3 * 320
    written = np.arange(greedy.prompt - 1, len(greedy.tokens) - 1)
    assert (greedy.likeliest[written, 0] == greedy.tokens[written + 1]).mean() > 0.9  # but for rounding
    assert (np.diff(greedy.log_p.astype(float), axis=1) <= 0).all()
    assert (np.exp(greedy.log_p.astype(float)).sum(1) <= 1.01).all()
    warm = [tuple(text.tokens) for text in texts[3:]]
    assert warm and tuple(greedy.tokens) not in warm
    context = session.models.target.open_kv
    context.rewind(0)
    row = context.decode(greedy.tokens.tolist())[0]
    assert row.argmax() == greedy.likeliest[-1, 0]


def test_a_recording_that_was_cut_short_goes_on_to_the_same_texts(session, prompts, recorded, tmp_path):
    def stop(done, wanted, left):
        if done > 40:
            session.interrupt.set()

    with pytest.raises(Interrupted):
        record_texts(session, prompts, WANTED, ROWS, tmp_path, stop)
    session.interrupt.clear()
    (tmp_path / "rows" / "000001.new").write_bytes(b"half of it")
    record_texts(session, prompts, WANTED, ROWS, tmp_path)
    assert contents(recorded[0]) == contents(tmp_path)


def test_answers_serve_for_other_rows(session, prompts, recorded, tmp_path, monkeypatch):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(type(session), "start", None)  # nothing is answered again
    paths = record_texts(session, prompts, WANTED, RowsWanted("none"), tmp_path)
    assert RecordedText.load(paths[0]).rows.shape[1] == 0


def test_prompts_are_held_out_by_category(session, tmp_path):
    chosen = training_prompts(session, "python", None, 512, raw=False)
    categories = {prompt.category for prompt in chosen.train}
    assert categories >= {prompt.category for prompt in chosen.held_out} and len(chosen.held_out) > 1
    assert not set(chosen.train) & set(chosen.held_out)
    assert len(chosen.held_out) == pytest.approx(len(chosen.train) / 4, abs=1)
    own = tmp_path / "own.txt"
    own.write_text("def f(x):\n" + "word " * 600)
    with pytest.raises(UsageError, match="too few usable prompts"):
        training_prompts(session, str(own), str(own), 512, raw=False)
    apart = training_prompts(session, "python", str(own), 512, raw=False)
    assert [prompt.text for prompt in apart.held_out] == ["def f(x):"] and "skipped" in apart.notes[-1]


def test_categories_and_temperatures_take_turns(session, tmp_path):
    own = tmp_path / "own.jsonl"
    entries = [{"prompt": f"{kind} {number}", "category": kind} for kind in ("code", "chat") for number in range(10)]
    own.write_text("\n".join(json.encode(each).decode() for each in entries))
    train = training_prompts(session, str(own), None, 512, raw=False).train
    assert [prompt.category for prompt in train][:4] == ["code", "chat"] * 2
    turns = list(target_texts._in_turn(train, WANTED))
    assert [temperature for _, temperature in turns][:4] == [0.0, 0.8, 0.8, 0.0]
    both = [{temperature for tokens, temperature in turns[:32] if tokens == own} for own in train.values()]
    assert both == [{0.0, 0.8}] * 16 and all(temperature for _, temperature in turns[32:])


def test_kept_conversations_are_prompts(chatting):
    turns = [SavedMessage(role, text) for role, text in [("user", "hi"), ("assistant", "yes"), ("user", "why?")]]
    CONVERSATIONS.save("long", SavedConversation((*turns, SavedMessage("user", "how?"))))
    for name in "abcdefg":
        CONVERSATIONS.save(name, SavedConversation((SavedMessage("user", name),)))
    with open_session(target=chatting[1], draft=None, drafter="none") as session:
        chosen = training_prompts(session, "conversations", None, 512, raw=False)
    ids = {prompt.id for prompt in [*chosen.train, *chosen.held_out]}
    assert ids == {*(f"{name}/0" for name in "abcdefg"), "long/0", "long/2", "long/3"}
    assert len(chosen.held_out) == 2


@pytest.mark.parametrize(("drafter", "tree"), [("model", 1), ("medusa", 4)])
def test_figures_are_those_of_the_answers_and_heads_are_charged_once_a_draft(prompts, monkeypatch, drafter, tree):
    answers, charged = [], []
    accepted, expected = making._acceptance, making._expected
    monkeypatch.setattr(making, "_acceptance", lambda name, them: answers.append(them) or accepted(name, them))
    monkeypatch.setattr(making, "_expected", lambda *of: charged.append(of[-1].draft(1)) or expected(*of))
    draft = str(DEMO / f"{'draft' if drafter == 'model' else drafter}.gguf")
    settings = Settings(str(TARGET), draft, drafter=drafter, tree=tree, threads=1)
    figures = making.draft_figures(settings, prompts, ("rtx-4090",), Interrupt())
    draft_s = sum(each.draft_s - each.draft_prefill_s for each in answers[-1])
    assert figures.drafted_s == pytest.approx(draft_s / sum(each.drafted for each in answers[-1]))
    drafts = sum(each.steps - each.lengths[0] for each in answers[-1])
    assert charged[0] == pytest.approx(draft_s / drafts if tree > 1 else figures.drafted_s)
    here, there = figures.expected
    assert (here.machine, there.machine) == ("here", "rtx-4090") and there.speedup >= 1 and here.speedup >= 1
    (overall,) = figures.categories
    assert overall.category == "all" and overall.prompts == 3
    if tree == 1:
        assert list(overall.by_place) == sorted(overall.by_place, reverse=True) and 0.3 < overall.by_place[0] < 1
        # Drafts of four tokens: a pass gives the sum of what stands, and the target's own token.
        assert overall.tokens_per_pass == pytest.approx(1 + sum(overall.by_place), rel=0.05)


def test_a_target_with_few_tokens_is_refused(session, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr("specdec_cli.make_drafts.target_texts.LIKELIEST", 5000)
    with pytest.raises(SpecdecError, match="too small to learn from"):
        record_texts(session, prompts, WANTED, ROWS, tmp_path)


def test_prompts_that_the_tokenizer_cannot_write_are_left_out(session, tmp_path, monkeypatch):
    unknown = session.tokenize("import")[-1]
    monkeypatch.setitem(session.pair.target.metadata, "tokenizer.ggml.unknown_token_id", unknown)
    own = tmp_path / "own.txt"
    own.write_text("import\ndef f(x):\nclass A:\n")
    chosen = training_prompts(session, str(own), None, 512, raw=False)
    assert {prompt.text for prompt in [*chosen.train, *chosen.held_out]} == {"def f(x):", "class A:"}
    assert "prompts skipped because the tokenizer cannot encode them: 1" in chosen.notes
    own.write_text("import\n")
    with pytest.raises(UsageError, match="cannot encode the prompts"):
        training_prompts(session, str(own), None, 512, raw=False)


def test_an_unknown_token_that_also_ends_texts_is_in_every_prompt(session, monkeypatch):
    ends = session.pair.target.metadata["tokenizer.ggml.eos_token_id"]
    assert ends in session.tokenize("import")
    monkeypatch.setitem(session.pair.target.metadata, "tokenizer.ggml.unknown_token_id", ends)
    assert not training_prompts(session, "python", None, 512, raw=False).notes


def test_on_a_full_disk_recordings_are_still_known(tmp_path):
    recorded = tmp_path / "answers", TARGET, {}, WANTED
    training_run._require_same(*recorded)
    with full_disk(0):
        training_run._require_same(*recorded)
    with pytest.raises(SpecdecError, match="other prompts"):
        training_run._require_same(*recorded[:2], {"x": [1]}, WANTED)


@pytest.mark.parametrize("others", ["", "abcdefg"])
def test_no_held_out_turn_is_part_of_a_training_prompt(others, tmp_path):
    import tiny

    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    path = tiny.write(tmp_path / "chat.gguf", "llama", chat_template=template)
    for name in ["long", *others]:
        turns = tuple(SavedMessage("user", f"{name} {number}") for number in range(7))
        CONVERSATIONS.save(name, SavedConversation(turns))
        CONVERSATIONS.save(f"{name}-again", SavedConversation(turns)) if others else None
    with open_session(target=str(path), draft=None, drafter="none") as session:
        chosen = training_prompts(session, "conversations", None, 512, raw=False)
    assert len(chosen.held_out) == (28 if others else 2) and len(chosen.train) >= 5
    for tokens in chosen.held_out.values():
        assert not any(other[: len(tokens)] == tokens for other in chosen.train.values())


def test_another_machine_is_charged_for_this_draft(session, prompts, monkeypatch):
    shares, expected = [], making._expected
    monkeypatch.setattr(
        making, "_expected", lambda *of: shares.append(of[-1].draft(1) / of[-1].verify(1)) or expected(*of)
    )
    settings = Settings(str(DEMO / "target.gguf"), str(DEMO / "draft.gguf"), threads=1)
    making.draft_figures(settings, prompts, ("rtx-4090",), Interrupt())
    here, there = shares
    assert there == pytest.approx(here)


def test_drafts_of_one_length_cost_repeated_passes_on_another_machine():
    accepted = making.CategoryAcceptance("all", 1, 10, (0.8, 0.6, 0.4, 0.3), 3.1)
    costs = Costs(Curve({1: 4.0, 5: 8.0}), Curve({1: 1.0}))
    replays = replace(costs, repeated=Curve({1: 4.0, 5: 5.0}))
    varying, steady = (making._expected("there", accepted, 1, False, each) for each in (costs, replays))
    assert varying.speedup == pytest.approx(1.8 / (5 + 1) * 4)
    assert (steady.draft_tokens, steady.speedup) == (2, pytest.approx(2.4 / (4.5 + 2) * 4))


@pytest.fixture
def training(tmp_path):
    place = TrainingPlace(TARGET, read_header(TARGET), tmp_path / "work", 1, Interrupt())
    options = TrainingOptions(str(TARGET), tmp_path / "out.gguf", tokens=1000, force=True)
    return training_run._Training(ScratchRecipe(), options, place, None)


def test_texts_that_are_recorded_need_no_more_room(training, monkeypatch):
    checkpoint = 16 * (2 * 4096 * 128 + 2 * 12 * 128**2)
    disk = SimpleNamespace(free=2 * checkpoint + 700_000)  # 768 kB of texts
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk)
    with pytest.raises(SpecdecError, match=r"46\.9 MB are needed"):
        training.prepare()
    rows = training.place.answers / "rows"
    rows.mkdir(parents=True)
    (rows / "000000.npz").write_bytes(bytes(100_000))
    training.prepare()
    training.checkpoint.touch()
    training._record.write_bytes(json.encode([training._asked, [], {}]))
    disk.free = checkpoint
    training.prepare()
    disk.free -= 1
    with pytest.raises(SpecdecError, match="are needed"):
        training.prepare()


def test_a_draft_that_is_still_needed_is_not_overwritten(training):
    training.options.out.write_bytes(DRAFT.read_bytes())
    with pytest.raises(UsageError, match="still needed"):
        training.prepare(training.options.out)
    with pytest.raises(UsageError, match="still needed"):
        replace(training, recipe=DistilRecipe(training.options.out)).prepare()


def test_a_finished_draft_is_overwritten_only_if_that_is_forced_or_the_same_training_goes_on(training):
    own = replace(training, options=replace(training.options, force=False))
    own.place.folder.mkdir()
    for path in (own.options.out, own.checkpoint):
        path.touch()
    own._record.write_bytes(json.encode([own._asked, [], {}]))
    own.prepare()
    with pytest.raises(UsageError, match="already exists"):
        replace(own, options=replace(own.options, minutes=600.0)).prepare()


def test_drafts_of_one_kind_that_share_a_folder_have_their_own_progress(training, tmp_path):
    (tmp_path / "other").mkdir()
    outs = tmp_path / "out.gguf", tmp_path / "second.gguf", tmp_path / "other" / "out.gguf"
    own = {replace(training, options=replace(training.options, out=out)).checkpoint for out in outs}
    assert len(own) == 3 and all(path.parent == training.place.folder for path in own)


def test_what_a_kill_left_in_the_folder_is_removed(training):
    training.place.folder.mkdir()
    left = training.place.folder / "specdec-0123456789abcdef.tmp"
    left.touch()
    os.utime(left, (0, 0))
    training.prepare()
    assert not left.exists()


def test_heads_are_compared_in_trees_of_one_size(training, monkeypatch):
    monkeypatch.setattr(training_run, "draft_figures", lambda settings, *_: (settings.drafter, settings.tree))
    old = DEMO / "medusa.gguf"
    heads = replace(training, recipe=MedusaRecipe(), progress=SimpleNamespace(measuring=lambda what: None))
    assert heads.measure({}, (old, read_header(old))) == (("medusa", 4), ("medusa", 4))


def test_the_first_held_out_prompts_are_of_all_categories(session):
    of = [prompt.category for prompt in training_prompts(session, "python", None, 512, raw=False).held_out]
    assert len(set(of[: len(set(of))])) == len(set(of)) > 1
