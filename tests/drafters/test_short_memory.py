"""A draft model that holds the first tokens of a long text and the latest: the output is the target's all the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes import Counting, FakeDraftModel, FakeTarget, Table, drafts_of, run, tokens_of

from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import sampler_of
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.short_memory import FIRST, ShortMemory

N_CTX = 64
GREEDY, SAMPLED = SamplingOptions(), SamplingOptions(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)


class Movable(FakeDraftModel):
    """A fake that can forget; held: the texts that it held when it read something."""

    shifts = True

    @property
    def tokens(self) -> list[int]:
        return self._cache

    def forget(self, first: int, count: int) -> None:
        assert self.shifts and not self._tree
        assert 0 < count <= len(self._cache) - first
        del self._cache[first : first + count]

    def begin(self, text: Sequence[int]) -> int:
        kept = 0
        while kept < min(len(self._cache), len(text) - 1) and self._cache[kept] == text[kept]:
            kept += 1
        self.rewind(kept)
        return kept


class Unmovable(Movable):
    shifts = False


KINDS = pytest.mark.parametrize("kind", [Movable, Unmovable])


def drafter_over(model: FakeDraftModel, width: int = 1) -> ModelDrafter:
    return ModelDrafter(
        ShortMemory(model), model.n_vocab, StandardSampler(GREEDY), True, np.random.default_rng(1), width
    )


@KINDS
@pytest.mark.parametrize(("width", "prompt"), [(1, 1), (1, 64), (3, 65), (3, 300)])
def test_drafts_go_on_and_come_from_the_first_and_the_latest_tokens(kind, width, prompt):
    text = list(range(prompt))
    model = kind(Counting(), n_ctx=N_CTX, max_rows=8)
    events = run(FakeTarget(Counting()), text, drafter_over(model, width), k=4, max_tokens=400)
    assert tokens_of(events) == list(range(prompt, prompt + 400))
    assert events[-1].notes == ()
    steps = drafts_of(events)
    assert sum(step.accepted for step in steps) > 0.7 * 400
    whole = list(range(prompt + 400))
    for read in model.read:
        assert len(read) <= N_CTX
        first, latest = read[:FIRST], read[FIRST:]
        assert list(first) == whole[: len(first)]
        assert list(latest) == list(range(latest[0], latest[0] + len(latest))) if latest else True


@KINDS
def test_what_is_read_stays_bounded(kind):
    """What stays is moved; where that cannot be, it is read again, each time half of the cache."""
    model = kind(Counting(), n_ctx=N_CTX, max_rows=8)
    run(FakeTarget(Counting()), (0, 1), drafter_over(model), k=4, max_tokens=1000)
    assert len(model.read) < (1.1 if kind is Movable else 2.5) * 1000


@KINDS
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_targets_own(kind, settings):
    """A draft that has forgotten drafts worse, and changes nothing: `coupled` and greedy, token for token."""
    target, draft = Table(8, 1, order=3), Table(8, 1, order=3).mixed(Table(8, 2), 0.4)
    texts = []
    for drafts in (False, True):
        sampler = sampler_of("coupled", settings, 7)
        model = kind(draft, n_ctx=N_CTX, max_rows=8)
        memory = ModelDrafter(ShortMemory(model), 8, sampler, True, np.random.default_rng(1))
        drafter = memory if drafts else None
        events = run(FakeTarget(target), (0, 1, 2), drafter, sampler=sampler, rule="coupled", max_tokens=200)
        texts.append(tokens_of(events))
    assert texts[0] == texts[1] and sum(step.accepted for step in drafts_of(events)) > 20


@KINDS
def test_a_conversation_goes_on_from_what_is_held(kind):
    model = kind(Counting(), n_ctx=N_CTX, max_rows=8)
    memory = ShortMemory(model)
    text = list(range(200))
    assert memory.begin(text) == 0
    memory.decode(memory.make_room(text[:-1], 1))
    assert memory.length == 199
    held = model.length
    longer = list(range(210))
    assert memory.begin(longer) == 199 and model.length == held
    for common, kept in ((190, 190), (150, FIRST)):
        assert memory.begin([*range(common), *range(500, 600)]) == memory.length == kept


def test_a_text_taken_back_beyond_what_is_held_is_read_anew():
    model = Movable(Counting(), n_ctx=N_CTX)
    memory = ShortMemory(model)
    memory.decode(memory.make_room(list(range(300)), 1))
    memory.rewind(150)
    assert memory.length == 0 and model.length == 0
    memory.decode([0, 1, 2])
    memory.rewind(2)
    assert model.tokens == [0, 1], "nothing is dropped yet"
