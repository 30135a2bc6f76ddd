"""Texts longer than the cache of a draft model: what stays has the rows of a text that never had more."""

import numpy as np
import pytest
import tiny
from engines import loaded

from specdec_cli import SamplingParams, SpeculativeConfig
from specdec_cli.drafters.short_memory import FIRST, ShortMemory
from specdec_cli.llama import kv_cache

TEXT = [1 + 7 * i % 290 for i in range(300)]


def rows_of(context, text):
    """Of the last four tokens of a text."""
    context.rewind(0)
    context.decode(text[:-4])
    return context.decode(text[-4:], all_rows=True).copy()


@pytest.mark.parametrize("branches", [1, 4])
def test_what_follows_the_forgotten_moves_up(opened, branches):
    """In a model of one layer the tokens that are held do not know of those that are gone."""
    context, fresh = opened("llama-flat", branches=branches, n_ctx=256), opened("llama-flat")
    context.decode(TEXT[:200])
    if branches > 1:
        context.grow(TEXT[200:203], [-1, -1, 0])
        context.keep([1])
        context.rewind(200)
    context.forget(FIRST, 100)
    assert context.length == 100 and context.tokens == [*TEXT[:FIRST], *TEXT[104:200]]
    rows = context.decode(TEXT[200:204], all_rows=True)
    expected = rows_of(fresh, [*TEXT[:FIRST], *TEXT[104:204]])
    unmoved = rows_of(fresh, TEXT[:204])
    assert np.abs(rows - expected).max() < 0.05
    assert np.abs(unmoved - expected).max() > 0.5, "the text that was forgotten counts"
    if branches > 1:
        grown = context.grow(TEXT[204:207], [-1, 0, 0])
        after = rows_of(fresh, [*TEXT[:FIRST], *TEXT[104:204], TEXT[204], TEXT[206]])
        assert np.abs(grown[2] - after[-1]).max() < 0.05


def test_places_left_as_they_were_would_be_seen(opened, monkeypatch):
    context, fresh = opened("llama-flat", n_ctx=512), opened("llama-flat")
    context.decode(TEXT[:200])
    monkeypatch.setattr(kv_cache.lib, "llama_memory_seq_add", lambda *_: None)
    context.cache.forget(FIRST, 100)
    rows = context.decode(TEXT[200:204], all_rows=True)
    assert np.abs(rows - rows_of(fresh, [*TEXT[:FIRST], *TEXT[104:204]])).max() > 0.5


@pytest.mark.parametrize("kind", ["llama-flat", "qwen35", "mamba"])
def test_a_short_memory_has_the_rows_of_the_first_and_the_latest_tokens(opened, kind):
    memory, fresh = ShortMemory(opened(kind, n_ctx=256)), opened(kind)
    memory.decode(memory.make_room(TEXT[:250], 1))
    row = memory.decode(memory.make_room(TEXT[250:260], 8))[0].copy()
    held = memory.length - memory._forgotten
    assert memory.length == 260 and held < 256
    expected = rows_of(fresh, [*TEXT[:FIRST], *TEXT[260 - held + FIRST : 260]])[-1]
    assert np.abs(row - expected).max() < 0.05


PROMPT = "def median(values):\n    return sorted(values)[len(values) // 2]\n\n\ndef mean(values):\n" * 3


@pytest.fixture(scope="module")
def session():
    with loaded(draft_window=64, threads=1, speculative=SpeculativeConfig(draft_tokens=4)) as session:
        yield session


def written(answer):
    """To its end. What was read before, in other passes, is read again: at a temperature its rounding would show."""
    assert list(answer)
    return answer.result


WAYS = [("model", 1, 4), ("model", 3, 4), ("model<ngram", 1, 4), ("ngram+model", 1, "auto")]


@pytest.mark.parametrize(("drafter", "tree", "k"), WAYS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_answer_is_the_targets_own(session, drafter, tree, k, temperature):
    how = SpeculativeConfig(drafter, k, tree=tree)
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=120)
    answer, own = (
        written(session.start(PROMPT, sampling, each, reuse=False)) for each in (how, SpeculativeConfig(drafter="none"))
    )
    assert answer.tokens == own.tokens
    assert not [note for note in answer.notes if "failed" in note]
    if k != "auto":
        assert answer.metrics.accepted > 0 and answer.metrics.steps < 120
    assert session.models.draft.opened.n_ctx == 64 < session.models.target.opened.n_ctx


def test_a_draft_that_was_trained_on_less_goes_on_drafting(tmp_path):
    target = tiny.write(tmp_path / "target.gguf", "llama")
    draft = tiny.write(tmp_path / "draft.gguf", "llama", noise=0.1, n_ctx=128)
    with loaded(target=target, draft=draft, threads=1) as session:
        answer = session.generate([5] * 150, SamplingParams(max_tokens=200), SpeculativeConfig("model", 3))
        assert session.models.draft.opened.n_ctx == 128
    assert answer.metrics.drafted > 100 and not [note for note in answer.notes if "failed" in note]


def test_a_draft_that_needs_more_tokens_for_the_text_goes_on_drafting(tmp_path, monkeypatch):
    words, merges = tiny.vocabulary()
    target = tiny.write(tmp_path / "target.gguf", "llama")
    monkeypatch.setattr(tiny, "vocabulary", lambda: (words, merges[:1]))
    draft = tiny.write(tmp_path / "draft.gguf", "llama", noise=0.1)
    with loaded(target=target, draft=draft, ctx=256, threads=1) as session:
        answer = session.generate([299] * 150, SamplingParams(max_tokens=40), SpeculativeConfig("model", 3))
    assert answer.metrics.drafted > 40 and not [note for note in answer.notes if "failed" in note]
