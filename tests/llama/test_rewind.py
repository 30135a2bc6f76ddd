"""Dropping rejected tokens from a cache, also one that cannot: what is computed after it equals a fresh context's."""

import itertools
from contextlib import closing

import numpy as np
import pytest
import tiny
from fakes import ScriptedDrafter, drafts_of, run, steps_of, tokens_of

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.passes import N_BATCH
from specdec_cli.llama.shared_context import SharedContext
from specdec_cli.llama.target import LlamaTarget

FORGETFUL = (*tiny.RECURRENT, *tiny.HYBRID)
"""The kinds whose cache cannot drop tokens."""
EVERY = (*tiny.ATTENTION, *FORGETFUL)
LENGTHS = (1, 4, 8)
PROMPT = tuple(range(40, 60))
ANSWER = 96
"""Tokens: enough for every number of accepted tokens up to 8 to occur twice."""


@pytest.fixture
def open_context(opened):
    return lambda kind, rows=1, **options: opened(kind, rows, **options)


def drafts_over(text, start, k):
    """Drafts of k tokens for the rest of a text, of which 0, 1, ... k are right, and so on."""
    for right in itertools.cycle(range(k + 1)):
        coming = text[start : start + k]
        yield [token if i < right else (token + 1) % tiny.N_VOCAB for i, token in enumerate(coming)]
        start += right + 1


def saved(context):
    """One that can come back to the end of PROMPT."""
    context.decode(PROMPT)
    context.begin_draft()
    return context


def fresh(context, *passes):
    """The row after all `passes`, computed from nothing. A row to read until the next decode."""
    context.rewind(0)
    for tokens in passes:
        row = context.decode(tokens)[0]
    return row


def same(row, other, within=1e-3):
    """Equal but for rounding, which depends on how tokens are split into passes, and adds up over many.

    The logits' standard deviation is 4; a missing, wrong or swapped token changes some logit by 0.3 or more.
    """
    return bool(np.abs(row - other).max() < within)


def accepted_of(events):
    return {step.accepted for step in drafts_of(events)}


def speculate(context, k):
    """What the target says alone, and what happens with drafts that are right up to every place."""
    target = LlamaTarget(context)
    alone = tokens_of(run(target, PROMPT, max_tokens=ANSWER))
    return alone, run(target, PROMPT, ScriptedDrafter(drafts_over(alone, 1, k)), k, ANSWER)


# As the target


@pytest.mark.parametrize("k", [*LENGTHS, 11])
@pytest.mark.parametrize("kind", EVERY)
def test_the_answer_is_the_targets_own(load, open_context, kind, k):
    """Also with drafts that are too long for snapshots."""
    assert load(kind).rewinds == (kind in tiny.ATTENTION)
    alone, events = speculate(open_context(kind, k + 1), k)
    assert len(set(alone)) > ANSWER // 4, "an answer of few tokens would hide a wrong state"
    assert tokens_of(events) == alone and events[-1].notes == ()
    assert accepted_of(events) == set(range(k + 1)) or k > 8


# As the draft model


@pytest.mark.parametrize("k", [1, pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize(("kind", "of"), [*((kind, kind) for kind in EVERY), *((kind, "llama") for kind in FORGETFUL)])
def test_a_draft_models_logits_after_a_rewind(open_context, kind, of, k):
    """For a target of its own kind, which it resembles, and for one of another, which refuses nearly all."""
    noise = 0.03 if kind == of else 0.0
    target, draft, other = LlamaTarget(open_context(of, k + 1)), *(open_context(kind, noise=noise) for _ in range(2))
    alone, sampler = tokens_of(run(target, PROMPT, max_tokens=ANSWER)), StandardSampler(SamplingOptions())
    for length in (ANSWER - 30, ANSWER - 7, ANSWER):
        drafter = ModelDrafter(draft, tiny.N_VOCAB, sampler, False, np.random.default_rng(0))
        events = run(target, PROMPT, drafter, k, length, sampler=sampler)
        assert events[-1].notes == () and tokens_of(events) == alone[:length]
        drafter.observe(steps_of(events)[-1])
        held = [*PROMPT, *alone][: draft.length]
        assert same(draft.decode((7,))[0], fresh(other, [*held, 7]), 0.1)
    if kind == of:
        assert {0, k} <= accepted_of(events), "nothing shows where all or none is accepted"


def every_place(k):
    """After drafts of k tokens, of which 0, 1 ... k are accepted."""
    draft = range(100, 101 + k)
    again = (step for kept in range(k + 1) for step in (0, PROMPT, "save", draft, 21 + kept, (7,), (8, 9)))
    return [k + 1, PROMPT, *again]


LONG = [(7 * i) % tiny.N_VOCAB for i in range(N_BATCH + 88)]
SCRIPTS = {
    "after a prompt of several passes": [5, LONG, "save", (1, 2, 3, 4, 5), len(LONG) + 2, (6,)],
    **{f"after drafts of {k}": every_place(k) for k in LENGTHS},
    "in several passes": [1, PROMPT, "save",
        *(step for keep in range(5) for step in ((100,), (101, 102), (103,), 20 + keep, (7,), 20)),
        (100, 101), 21, (7,),
    ],
    "two in a row": [1, PROMPT, "save", (100, 101, 102, 103, 104, 105), 24, 22, 21, (7,)],
    "a checkpoint right after": [4, PROMPT, "save", (100, 101, 102, 103), 22, "save", (104, 105, 106), 23, (7,)],
    "to nothing": [1, (1, 2, 3), "save", (4, 5), 0, PROMPT],
    "to the present or beyond": [1, PROMPT, 20, 25, (7,)],
}  # fmt: skip
"""Rows of a context; then what is decoded, where a checkpoint is saved, and how many tokens a rewind keeps."""


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("kind", EVERY)
def test_after_rewinds_every_row_is_that_of_a_fresh_context(open_context, kind, script):
    rows, *steps = script
    context, other, text, rewound = open_context(kind, rows), open_context(kind), [], False
    for step in steps:
        if step == "save":
            context.begin_draft()
        elif isinstance(step, int):
            context.rewind(step)
            text, rewound = text[:step], True
        else:
            row = context.decode(step, all_rows=1 < len(step) <= rows)[-1].copy()
            text = [*text, *step]
            assert not rewound or same(row, fresh(other, text))
        assert context.length == len(text)


# The edges


@pytest.mark.parametrize("kind", FORGETFUL)
def test_no_way_back_before_the_checkpoint(open_context, kind):
    context, other = open_context(kind), open_context(kind)
    context.decode(PROMPT)
    with pytest.raises(SpecdecError, match="cannot go back"):
        context.rewind(len(PROMPT) - 1)  # there is no checkpoint
    context.begin_draft()
    context.decode((7, 8))
    with pytest.raises(SpecdecError, match="cannot go back"):
        context.rewind(len(PROMPT) - 1)
    assert same(context.decode((9,))[0], fresh(other, [*PROMPT, 7, 8, 9])), "the refusal left the state alone"
    context.rewind(0)
    context.decode([*PROMPT, 7, 8])
    with pytest.raises(SpecdecError, match="cannot go back"):
        context.rewind(len(PROMPT) + 1)  # the checkpoint did not outlive the clear


# What these tests are worth: faults that they must see


@pytest.fixture
def replay_is_wrong(monkeypatch):
    """The last of the tokens since the checkpoint are decoded again, where the first are meant."""
    restore = LlamaContext._restore

    def from_the_end(context, length):
        saved, _ = context.cache._saved
        context.tokens[saved:] = context.tokens[: saved - 1 : -1]
        restore(context, length)

    monkeypatch.setattr(LlamaContext, "_restore", from_the_end)


@pytest.mark.usefixtures("replay_is_wrong")
@pytest.mark.parametrize("kind", FORGETFUL)
def test_logits_and_answers_show_a_wrong_replay(open_context, kind):
    context, other = saved(open_context(kind)), open_context(kind)
    context.decode((100, 101, 102))
    context.rewind(len(PROMPT) + 2)
    assert not same(context.decode((7,))[0], fresh(other, [*PROMPT, 100, 101, 7]))
    if kind in tiny.RECURRENT:
        alone, events = speculate(open_context(kind, 5), 4)
        assert tokens_of(events) != alone


@pytest.mark.parametrize("kind", FORGETFUL)
def test_a_restore_that_does_nothing_is_refused(open_context, monkeypatch, kind):
    context = saved(open_context(kind))
    context.decode((1, 2, 3))
    monkeypatch.setattr(
        "specdec_cli.llama.kv_cache.lib.llama_state_seq_set_data_ext", lambda handle, state, size, seq, flags: size
    )
    with pytest.raises(SpecdecError, match="cannot restore"):
        context.rewind(len(PROMPT) + 1)


SNAPSHOTS = tuple(kind for kind in FORGETFUL if kind != "mamba")
"""The kinds of which llama.cpp keeps the state at each of the last tokens of a pass, for short drafts."""


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_snapshots_serve_one_rewind_within_the_last_pass(open_context, kind):
    context, alone = saved(open_context(kind, 6)), open_context(kind)
    context.decode((1, 2, 3, 4, 5, 6), all_rows=True)
    context.rewind(len(PROMPT) + 3)
    with pytest.raises(SpecdecError):  # a second one without a pass in between
        context.rewind(len(PROMPT) + 2)
    assert same(context.decode((7,))[0], fresh(alone, [*PROMPT, 1, 2, 3, 7]))
    with pytest.raises(SpecdecError):  # the whole of the last pass
        context.rewind(len(PROMPT) + 3)
    assert same(context.decode((8,))[0], fresh(alone, [*PROMPT, 1, 2, 3, 7, 8]))


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_a_snapshot_of_an_older_pass_would_be_wrong(open_context, kind) -> None:
    """Negative control: llama.cpp lets a rewind cross passes, and the logits after it are wrong."""
    context, alone = open_context(kind, 6), open_context(kind)
    context.decode(PROMPT)
    for token in (1, 2, 3):
        context.decode((token,))
    context.cache.last_pass = 4
    context.rewind(len(PROMPT) + 2)
    assert not same(context.decode((7,))[0], fresh(alone, [*PROMPT, 1, 2, 7]))


@pytest.mark.parametrize(("kind", "rows"), [*((kind, 6) for kind in SNAPSHOTS), *((kind, 1) for kind in FORGETFUL)])
def test_the_next_text_keeps_what_was_accepted_at_the_end_of_the_last(open_context, kind, rows):
    """With a snapshot of the last pass, or a checkpoint from before it."""
    context, alone = saved(open_context(kind, rows)), open_context(kind)
    context.decode((1, 2, 3, 4, 5, 6), all_rows=rows > 1)
    context.reuses = True
    text = [*PROMPT, 1, 2, 3, 9]
    unread = context.unread(text)
    kept = context.begin(text)
    assert kept == len(text) - unread
    assert kept == (len(text) - 1 if rows > 1 else len(PROMPT))
    assert same(context.decode(text[kept:])[0], fresh(alone, text))


@pytest.mark.parametrize("kind", FORGETFUL)
def test_a_state_that_was_loaded_is_kept_whole(open_context, tmp_path, kind):
    context, other, alone = open_context(kind), open_context(kind), open_context(kind)
    context.decode(PROMPT)
    other._failed = True  # as Ctrl-C in a pass leaves it
    assert other.load(tmp_path / "kept", context.save(tmp_path / "kept"))
    other.reuses = True
    assert other.begin([*PROMPT, 9]) == len(PROMPT)
    assert same(other.decode((9,))[0], fresh(alone, PROMPT, [9]))
    context._failed = True
    assert not other.load(tmp_path / "part", context.save(tmp_path / "part")), "part of a state is not saved"


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_a_loaded_state_does_not_go_back_by_the_snapshots_of_another_text(open_context, tmp_path, kind):
    context, alone = saved(open_context(kind, 6)), open_context(kind)
    context.decode((1, 2, 3, 4, 5, 6), all_rows=True)
    kept = context.save(tmp_path / "kept")
    context.rewind(0)
    context.decode(range(70, 90))
    context.decode((7, 8, 9, 10, 11, 12), all_rows=True)
    assert context.load(tmp_path / "kept", kept)
    context.reuses, text = True, [*PROMPT, 1, 2, 3, 4, 9]
    context_kept = context.begin(text)
    assert same(context.decode(text[context_kept:])[0], fresh(alone, text))


@pytest.mark.parametrize("kind", ["lfm2", "qwen35"])
def test_drafts_of_many_texts_go_back_to_checkpoints(load, open_context, kind):
    """Their passes have few rows, as those of a target have, but a draft is read token by token."""
    with closing(SharedContext(load(kind), 128, 4, 1, Interrupt(), [Interrupt()] * 2, snapshots=False)) as shared:
        text = saved(shared.texts[1])
        for token in (1, 2, 3):
            text.decode((token,))
        text.end_draft(len(PROMPT) + 1)
        assert same(text.decode((9,))[0], fresh(open_context(kind), PROMPT, (1, 9)))


@pytest.mark.parametrize("n_ctx", [2, 9])
def test_a_context_of_fewer_tokens_than_snapshots(open_context, n_ctx):
    """llama.cpp would abort the process."""
    context, alone = open_context("lfm2", 9, n_ctx=n_ctx), open_context("lfm2")
    assert context.n_ctx == n_ctx
    assert same(context.decode((1, 2))[0], fresh(alone, (1, 2)))


@pytest.mark.parametrize("kind", ["llama", "olmo2-window", "lfm2-window"])
def test_a_text_reuses_only_what_other_texts_have_left_of_it(load, open_context, kind):
    """llama.cpp overwrites cells outside a text's sliding window where other texts need room."""
    alone, beginning = open_context(kind), [*range(8)]
    with closing(SharedContext(load(kind), 512, 4, 1, Interrupt(), [Interrupt(), Interrupt()])) as shared:
        first, second = shared.texts
        for text, tokens in ((first, [*range(200)]), (second, [*range(250)]), (first, [*beginning, *range(50, 280)])):
            text.reuses = True
            text.decode([token % 90 for token in tokens[text.begin(tokens) :]])
        for text in (second, first):
            kept = text.begin([*beginning, 9])
            assert kept or kind != "llama"
            assert same(text.decode([*beginning, 9][kept:])[0], fresh(alone, [*beginning, 9]), 0.05)
