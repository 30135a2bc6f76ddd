"""Texts longer than the cache of a draft model: what stays has the rows of a text that never had more."""

from functools import cache

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


def test_places_left_as_they_were_would_be_seen(opened, monkeypatch):
    context, fresh = opened("llama-flat", n_ctx=512), opened("llama-flat")
    context.decode(TEXT[:200])
    monkeypatch.setattr(kv_cache.lib, "llama_memory_seq_add", lambda *_: None)
    context.cache.forget(FIRST, 100)
    rows = context.decode(TEXT[200:204], all_rows=True)
    assert np.abs(rows - rows_of(fresh, [*TEXT[:FIRST], *TEXT[104:204]])).max() > 0.5


@pytest.mark.parametrize(("kind", "branches"), [("llama-flat", 1), ("llama-flat", 4), ("qwen35", 1), ("mamba", 1)])
def test_a_short_memory_has_the_rows_of_the_first_and_the_latest_tokens(opened, kind, branches):
    """In a model of one layer the tokens that are held do not know of those that are gone. Trees come and go, too."""
    context, fresh = opened(kind, branches=branches, n_ctx=256), opened(kind)
    memory = ShortMemory(context)
    memory.decode(memory.make_room(TEXT[:250], 1))
    if branches > 1:
        memory.grow(TEXT[250:253], [-1, -1, 0])
        memory.keep([1])
        memory.rewind(250)
    rows = memory.decode(memory.make_room(TEXT[250:260], 8), all_rows=True)[-4:].copy()
    gone = memory.length - context.length
    assert memory.length == 260 and context.length < 256
    held = [*TEXT[:FIRST], *TEXT[FIRST + gone : 260]]
    assert context.tokens == held
    assert np.abs(rows - rows_of(fresh, held)).max() < 0.05
    assert np.abs(rows - rows_of(fresh, TEXT[:260])).max() > 0.5, "the text that was forgotten counts"
    if branches > 1:
        grown = memory.grow(TEXT[260:263], [-1, 0, 0])
        assert np.abs(grown[2] - rows_of(fresh, [*held, TEXT[260], TEXT[262]])[-1]).max() < 0.05


PROMPT = "def median(values):\n    return sorted(values)[len(values) // 2]\n\n\ndef mean(values):\n" * 3


@pytest.fixture(scope="module")
def session():
    with loaded(draft_window=64, threads=1, speculative=SpeculativeConfig(draft_tokens=4)) as session:
        yield session


def written(session, temperature, how):
    """To its end. What was read before, in other passes, is read again: at a temperature its rounding would show."""
    answer = session.start(PROMPT, SamplingParams(temperature=temperature, seed=3, max_tokens=120), how, reuse=False)
    assert list(answer)
    return answer.result


@pytest.fixture(scope="module")
def own(session):
    """What the target alone writes at a temperature."""
    return cache(lambda temperature: written(session, temperature, SpeculativeConfig("none")).tokens)


WAYS = [("model", 1, 4), ("model", 3, 4), ("model<ngram", 1, 4), ("ngram+model", 1, "auto")]
SAMPLED = [pytest.param(0.8, *way, marks=[pytest.mark.slow] * (way[0] != "model")) for way in WAYS]


@pytest.mark.parametrize(("temperature", "drafter", "tree", "k"), [*((0.0, *way) for way in WAYS), *SAMPLED])
def test_the_answer_is_the_targets_own(session, own, drafter, tree, k, temperature):
    answer = written(session, temperature, SpeculativeConfig(drafter, k, tree=tree))
    assert answer.tokens == own(temperature)
    assert not [note for note in answer.notes if "failed" in note]
    if k != "auto":
        assert answer.metrics.accepted > 0 and answer.metrics.steps < 120
    assert session.models.draft.open_kv.n_ctx == 64 < session.models.target.open_kv.n_ctx


def test_a_draft_that_was_trained_on_less_goes_on_drafting(load, tmp_path):
    draft = tiny.write(tmp_path / "draft.gguf", "llama", noise=0.1, n_ctx=128)
    with loaded(target=load("llama").path, draft=draft, threads=1) as session:
        answer = session.generate([5] * 150, SamplingParams(max_tokens=200), SpeculativeConfig("model", 3))
        assert session.models.draft.open_kv.n_ctx == 128
    assert answer.metrics.drafted > 100 and not [note for note in answer.notes if "failed" in note]


def test_a_draft_that_needs_more_tokens_for_the_text_goes_on_drafting(load, tmp_path, monkeypatch):
    target = load("llama").path
    words, merges = tiny.vocabulary()
    monkeypatch.setattr(tiny, "vocabulary", lambda: ([*words[:258], *(word[::-1] for word in words[258:])], merges[:1]))
    draft = tiny.write(tmp_path / "draft.gguf", "llama", noise=0.1)
    with loaded(target=target, draft=draft, ctx=256, threads=1) as session:
        answer = session.generate([299] * 150, SamplingParams(max_tokens=40), SpeculativeConfig("model", 3))
    assert answer.metrics.drafted > 40 and not [note for note in answer.notes if "failed" in note]
