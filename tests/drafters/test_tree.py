"""How a tree grows: which tokens it takes, what the draft model is asked, and what it does where there is little."""

import itertools
from math import prod

import numpy as np
import pytest
from fakes import GREEDY, Counting, FakeDraftModel, FakeTarget, Table, run, tokens_of
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import NO_DRAFT, Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter

SAMPLED = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = (1, 2)


class Recorded(FakeDraftModel):
    """Notes the size of every pass, and the whole text that every token was read in."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.passes = []
        self.read = []

    def decode(self, tokens, all_rows=False):
        self.passes.append(len(tokens))
        assert not self._tree, "a tree is ended before the text goes on"
        self.read += [(*self._cache, *tokens[: i + 1]) for i in range(len(tokens))]
        return super().decode(tokens, all_rows)

    def grow(self, tokens, parents):
        self.passes.append(len(tokens))
        before = len(self._tree)
        rows = super().grow(tokens, parents)
        self.read += [(*self._cache, *path) for path in self._tree[before:]]
        return rows


class Believing(FixedLength):
    """Takes the draft's confidence for what it is."""

    def rate(self, rank, confidence):
        return confidence


def drafter_over(model, width, sampling=GREEDY, draws=True, n_vocab=10**6):
    return ModelDrafter(model, n_vocab, StandardSampler(sampling), draws, np.random.default_rng(0), width)


def draft_of(table, width, policy, k=6, sampling=GREEDY, draws=True, prompt=PROMPT):
    model = Recorded(table)
    drafter = drafter_over(model, width, sampling, draws)
    drafter.start(prompt)
    policy.limit(k)
    return drafter.propose(prompt, k, policy), model


def paths_of(draft):
    found = []
    for node, parent in enumerate(draft.parents):
        found.append((*(found[parent] if parent >= 0 else ()), draft.tokens[node]))
    return found


def leaves(parents):
    return sum(node not in parents for node in range(len(parents)))


def steps_of(events):
    return [event for event in events if isinstance(event, Step) and event.drafted]


# Which tokens it takes


def chance(table, path):
    """The probability that the draft's own table gives a path."""
    found = []
    for i, token in enumerate(path):
        row = table.row([*PROMPT, *path[:i]]).astype(float)
        found.append(np.exp(row[token]) / np.exp(row).sum())
    return prod(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_the_most_probable_tokens_are_taken(seed, k):
    """With room for every branch: the k most probable of all paths, which hang together by themselves."""
    table = Table(6, seed, order=3, scale=1.0)
    draft, _ = draft_of(table, 16, Believing(k), k)
    every = [path for length in (1, 2, 3, 4) for path in itertools.product(range(6), repeat=length)]
    best = sorted(every, key=lambda path: -chance(table, path))[:k]
    assert len(draft.tokens) == k and draft.q is None
    assert set(paths_of(draft)) == set(best)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_with_few_branches_it_takes_the_best_that_fit_one_by_one(seed, width):
    """Greedily by brute force: of all places, the most probable token that leaves no more than `width` leaves."""
    table = Table(6, seed, order=3, scale=1.0)
    draft, _ = draft_of(table, width, Believing(7), 7)
    taken = []
    for _ in range(7):
        places = [(*path, token) for path in [(), *taken] for token in range(6)]
        free = [path for path in places if path not in taken]
        branches = {path: leaves_of([*taken, path]) for path in free}
        taken.append(max((path for path in free if branches[path] <= width), key=lambda path: chance(table, path)))
    assert paths_of(draft) == taken


def leaves_of(paths):
    return sum(not any(other[:-1] == path for other in paths) for path in paths)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_budget_width_and_siblings(draws, width, k):
    target = Table(8, 5, scale=1.0)
    model = Recorded(target.mixed(Table(8, 6), 0.5))
    drafter = drafter_over(model, width, SAMPLED, draws)
    events = run(FakeTarget(target), PROMPT, drafter, k, 60, SAMPLED, policy=Believing(k))
    assert not events[-1].notes
    steps = steps_of(events)
    for step in steps:
        assert len(step.drafted) <= k
        parents = step.parents or tuple(range(-1, len(step.drafted) - 1))
        assert leaves(parents) <= width
        assert len(set(zip(parents, step.drafted, strict=True))) == len(step.drafted)
        assert all(parent < node for node, parent in enumerate(parents))
    assert max(len(step.drafted) for step in steps) == k
    if width == 1:
        assert all(step.parents is None for step in steps)
    elif k == 7:
        assert max(leaves(step.parents) for step in steps) >= min(width, 4)


PENALISED = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=3.0, penalty_window=2)


@pytest.mark.parametrize("sampling", [SAMPLED, PENALISED])
def test_every_q_is_what_is_left_of_the_drafts_own(sampling):
    elders = depth = 0
    for seed in range(6):
        table = Table(8, seed, scale=1.0)
        draft, _ = draft_of(table, 3, Believing(9), 9, sampling)
        sampler = StandardSampler(sampling)
        paths = paths_of(draft)
        for node, parent in enumerate(draft.parents):
            path = paths[parent] if parent >= 0 else ()
            expected = sampler.categorical(table.row([*PROMPT, *path]), path).probs.astype(float)
            for elder in range(node):
                if draft.parents[elder] == parent:
                    expected[draft.tokens[elder]] = 0.0
                    elders += 1
            assert draft.q[node].probs == pytest.approx(expected / expected.sum(), abs=1e-6)
            depth = max(depth, len(path))
    assert elders > 5 and depth > 2


# What the draft model is asked


def finished(width, k, sampling=GREEDY, share=0.3, seed=0, max_tokens=80):
    target = Table(30, seed)
    model = Recorded(target.mixed(Table(30, seed + 1), share))
    drafter = drafter_over(model, width, sampling)
    events = run(FakeTarget(target), (1, 2, 3), drafter, k, max_tokens, sampling, sampler=StandardSampler(sampling))
    assert not events[-1].notes
    return events, model


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_no_token_of_the_answer_is_read_twice(width, sampling):
    events, model = finished(width, 6, sampling)
    final = (1, 2, 3, *tokens_of(events))
    right = [text for text in model.read if final[: len(text)] == text]
    assert len(right) == len(set(right))
    assert 0.05 < Metrics.of(events).acceptance_rate < 1
    assert any(step.accepted and step.path != tuple(range(step.accepted)) for step in steps_of(events))


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_no_more_passes_than_a_chain_takes(width, k):
    for share in (0.0, 0.5, 1.0):
        model = Recorded(Table(30, 0).mixed(Table(30, 1), share))
        for draws in (True, False):
            model.rewind(0)
            model.passes.clear()
            drafter = drafter_over(model, width, SAMPLED, draws)
            drafter.start(PROMPT)
            draft = drafter.propose(PROMPT, k, FixedLength(k))
            assert len(draft.tokens) == k
            assert len(model.passes) - 1 <= k, "one for the prompt, then one before each token of a chain"
            assert max(model.passes) <= width


def test_several_tokens_are_read_in_one_pass():
    _, model = finished(4, 8, share=1.0)
    assert max(model.passes) > 2


def test_a_tree_wider_than_the_model_can_read_is_narrower():
    target = Table(30, 0)
    model = Recorded(target.mixed(Table(30, 1), 1.0), max_rows=2)
    events = run(FakeTarget(target), PROMPT, drafter_over(model, 8), policy=Believing(8), max_tokens=60)
    assert not events[-1].notes and max(model.passes[1:]) == 2
    assert max(leaves(step.parents) for step in steps_of(events)) == 2


# What comes of it


@pytest.mark.parametrize(
    ("k", "sampling", "share", "more"),
    [(4, GREEDY, 0.4, 1.1), (8, GREEDY, 0.4, 1.3), (8, GREEDY, 0.2, 1.1), (8, SAMPLED, 0.6, 1.05)],
)
def test_more_tokens_a_step_than_a_chain_of_the_same_size(k, sampling, share, more):
    def tokens_per_step(width):
        reports = [Metrics.of(finished(width, k, sampling, share, seed, 200)[0]) for seed in range(8)]
        if width == 1:
            assert sum(r.kept[0] for r in reports) / sum(r.reached[0] for r in reports) < 0.8
        return sum(r.emitted - 1 for r in reports) / sum(r.steps for r in reports)

    assert tokens_per_step(4) > tokens_per_step(1) * more


def leaves_under(costs, max_tokens=400, width=4):
    target = Table(30, 0)
    drafter = drafter_over(Recorded(target.mixed(Table(30, 1), 0.35)), width)
    policy = Timed(costs)
    events = run(FakeTarget(target), PROMPT, drafter, max_tokens=max_tokens, policy=policy)
    assert not events[-1].notes
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), PROMPT, max_tokens=max_tokens))
    return [leaves(step.parents) for step in steps_of(events)]


def test_auto_branches_out_where_verification_is_flat():
    found = leaves_under(FLAT)
    assert sum(n > 1 for n in found) > len(found) / 2


def test_auto_keeps_to_chains_where_verification_is_steep():
    found = leaves_under(STEEP)
    assert sum(n > 1 for n in found) <= len(found) / 10


# Where there is little to draft


def test_a_cut_that_leaves_one_candidate_gives_a_chain():
    cut = SamplingSettings(temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
    draft, _ = draft_of(Table(8, 1), 4, Believing(5), 5, cut)
    assert draft.parents == (-1, 0, 1, 2, 3)
    assert all(q.prob(token) == 1.0 for q, token in zip(draft.q, draft.tokens, strict=True))


def test_a_cut_that_leaves_two_candidates_gives_pairs():
    class Broad(Believing):
        def rate(self, rank, confidence):
            return 0.1

    cut = SamplingSettings(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
    draft, _ = draft_of(Table(8, 1), 4, Broad(6), 6, cut)
    assert [draft.parents.count(parent) for parent in (-1, 0, 1)] == [2, 2, 2]
    assert draft.parents[:2] == (-1, -1)
    for parent in (-1, 0, 1):
        elder, younger = draft.children(parent)
        assert draft.q[elder].prob(draft.tokens[elder]) < 1.0
        assert draft.q[younger].prob(draft.tokens[younger]) == 1.0, "there is nothing else left"


@pytest.mark.parametrize("draws", [True, False])
def test_a_vocabulary_smaller_than_the_tree_is_wide(draws):
    target = Table(2, 3, scale=0.5)
    drafter = drafter_over(Recorded(target.mixed(Table(2, 4), 1.0)), 5, SAMPLED, draws)
    events = run(FakeTarget(target), (0, 1), drafter, 9, 60, SAMPLED)
    assert not events[-1].notes
    assert all(max(step.parents.count(parent) for parent in step.parents) <= 2 for step in steps_of(events))
    assert any(leaves(step.parents) > 2 for step in steps_of(events))


def test_padding_of_the_draft_is_never_proposed():
    class Padded(Counting):
        def row(self, context):
            row = super().row(context)
            row[60:] = 99
            return row

    drafter = drafter_over(FakeDraftModel(Padded(n_vocab=64)), 4, n_vocab=60)
    events = run(FakeTarget(Counting(n_vocab=60)), drafter=drafter, k=6, max_tokens=20)
    assert events[-1].notes == ()
    assert all(token < 60 for step in steps_of(events) for token in step.drafted)


@pytest.mark.parametrize("draws", [True, False])
def test_a_policy_that_refuses_at_once_gets_nothing(draws):
    draft, model = draft_of(Table(8, 1), 4, Believing(5, min_p=0.999), 5, SAMPLED, draws)
    assert draft is NO_DRAFT
    assert model.passes == [1, 1], "the prompt, and what it ends in"


@pytest.mark.parametrize("draws", [True, False])
def test_no_token_where_the_draft_is_less_sure_than_min_p(draws):
    sizes = []
    for min_p in (0.0, 0.3, 0.6):
        for seed in range(20):
            table = Table(8, seed)
            draft, _ = draft_of(table, 4, Believing(6, min_p), 6, SAMPLED, draws)
            sizes.append(len(draft.tokens))
            for node, q in enumerate(draft.q or ()):
                assert float(q.probs.max()) >= min_p or min_p == 0, (node, q)
    assert sum(sizes[:20]) > sum(sizes[20:40]) > sum(sizes[40:]) > 0


def test_a_policy_that_wants_no_more_passes_gets_siblings():
    class NoLook(Believing):
        def should_read(self, drafted, path_probability=None):
            return False

    draft, model = draft_of(Table(8, 1, scale=0.5), 4, NoLook(6), 6)
    assert draft.parents == (-1,) * 4 and len(model.passes) == 2


# Troubles


def test_a_full_draft_context_leaves_the_target_alone():
    events = run(
        FakeTarget(Counting()), (0, 1), drafter_over(FakeDraftModel(Counting(), n_ctx=14), 3), k=4, max_tokens=30
    )
    assert tokens_of(events) == list(range(2, 32))
    assert "its context of 14 tokens is full" in events[-1].notes[0]
    assert steps_of(events)


def test_a_model_that_fails_in_the_middle_of_a_tree_serves_the_next_run():
    class Fails(Recorded):
        left = 3

        def grow(self, tokens, parents):
            self.left -= 1
            if self.left == 0:
                raise OSError("the device is gone")
            return super().grow(tokens, parents)

    target = Table(30, 0)
    drafter = drafter_over(Fails(target.mixed(Table(30, 1), 0.3)), 3)
    first = run(FakeTarget(target), PROMPT, drafter, 6, 40)
    assert "the device is gone" in first[-1].notes[0]
    second = run(FakeTarget(target), PROMPT, drafter, 6, 40)
    assert second[-1].notes == () and Metrics.of(second).accepted > 5
    assert tokens_of(first) == tokens_of(second) == tokens_of(run(FakeTarget(target), PROMPT, max_tokens=40))


def test_a_run_that_ends_with_an_open_tree_leaves_no_trace():
    """The last step is not observed: its tree stays in the draft's cache until the next run begins."""
    target = Table(30, 0)
    model = Recorded(target.mixed(Table(30, 1), 0.3))
    drafter = drafter_over(model, 3)
    first = [run(FakeTarget(target), PROMPT, drafter, 6, 15 + extra) for extra in range(4)]
    again = run(FakeTarget(target), PROMPT, drafter, 6, 15)
    assert [step.drafted for step in steps_of(first[0])] == [step.drafted for step in steps_of(again)]
    assert all(events[-1].notes == () for events in first)
