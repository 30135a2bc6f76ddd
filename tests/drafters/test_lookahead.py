"""Lookahead decoding: the window is what Jacobi iteration makes of it, n-grams are kept, and the output stays exact."""

from collections import Counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import Counting, FakeTarget, Table, run, tokens_of

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.decoding.types import NO_DRAFT, Draft, Step, Token, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.chain import ChainDrafter
from specdec_cli.drafters.lookahead import LookaheadDrafter

SIZES = [(7, 4, 7), (5, 3, 5), (1, 2, 1), (1, 5, 3), (4, 2, 2), (3, 7, 1)]


ANY = FixedLength(400, whole=True)


def lookahead(window, size, candidates, seed=0):
    return LookaheadDrafter(window, size, candidates, np.random.default_rng(seed))


def most(window, size, candidates):
    """Tokens of the largest draft."""
    return (window + candidates) * (size - 1) - 1


def paths_of(draft):
    """Every node of a token tree as the tokens from the top down to it."""
    paths = []
    for token, parent in zip(draft.tokens, draft.parents or (), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def rows_of(table, context, draft):
    """What the pass that verifies a draft yields."""
    return np.stack([table.row([*context, *path]) for path in [(), *paths_of(draft)]])


def step_of(tokens, draft=NO_DRAFT):
    return Step(1, tuple(Token(t, "", "plain") for t in tokens), draft.tokens, 0, (), draft.source, 0, 0, 0, 0)


class Reference:
    """The same, thought of otherwise: a guess of each level for each place of the text, and one list of n-grams."""

    def __init__(self, window, size, candidates, seed):
        self.window, self.size, self.candidates = window, size, candidates
        self.rng = np.random.default_rng(seed)
        self.guesses, self.grams, self.read, self.text = {}, [], 0, []

    def fill(self, pending):
        """Guess what is not guessed yet: level j is about the places j, j + 1 ... after the pending token."""
        self.guesses = {
            (level, place): self.guesses[level, place]
            if (level, place) in self.guesses
            else int(self.text[int(self.rng.integers(len(self.text)))])
            for level in range(self.size - 1)
            for place in range(pending + level, pending + level + self.window)
        }

    def expected(self, context):
        """The paths of a draft that may be as long as it likes, in the order of the siblings."""
        for end in range(max(self.read, self.size), len(context) + 1):
            self.grams.append(tuple(context[end - self.size : end]))
        self.read, self.text = len(context) + 1, list(context)
        pending = len(context) - 1
        self.guesses[0, pending] = context[-1]
        paths = [gram[1:] for gram in self.known(context[-1])]
        for column in range(self.window):
            paths.append(tuple(self.column(pending, column)[1:]))
        return paths

    def known(self, first):
        """The n-grams that begin with a token, each once, the latest first."""
        return list(dict.fromkeys(gram for gram in reversed(self.grams) if gram[0] == first))[: self.candidates]

    def column(self, pending, column):
        """What is read for one column: the text's token, the first guesses up to it, then its own."""
        lead = [self.guesses[0, pending + i] for i in range(column + 1)]
        return lead + [self.guesses[level, pending + column + level] for level in range(1, self.size - 1)]

    def improve(self, table, context):
        pending = len(context) - 1
        found = {}
        for column in range(self.window):
            read = self.column(pending, column)
            token = int(table.row([*context[:-1], *read]).argmax())
            self.grams.append((*read[column:], token))
            found[self.size - 2, pending + column + self.size - 1] = token
        for (level, place), token in self.guesses.items():
            if level:
                found[level - 1, place] = token
        self.guesses = found


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_jacobi_iteration(size, order):
    """After passes that accept none, some or all, and after steps that were another's, against the reference."""
    for seed in range(6):
        table, rng = Table(9, seed, order=order), np.random.default_rng([seed, order])
        mine, reference = lookahead(*size, seed), Reference(*size, seed)
        context = [3, 1, 4]
        mine.start(tuple(context))
        reference.text = list(context)
        reference.fill(len(context) - 1)
        for _ in range(40):
            if rng.random() < 0.25:  # another drafter of a chain, or a rest: nothing of ours was in the pass
                draft = NO_DRAFT
            else:
                draft = mine.propose(context, most(*size), ANY)
                expected = reference.expected(context)
                whole = {path[:n] for path in expected for n in range(1, len(path) + 1)}
                assert set(paths_of(draft)) == whole
                assert [path[:1] for path in paths_of(draft) if len(path) == 1] == list(
                    dict.fromkeys(path[:1] for path in expected if path)
                )
                if draft.tokens:
                    draft.row_observer(rows_of(table, context, draft))
                    reference.improve(table, context)
            news = rng.integers(9, size=rng.choice([1, 1, 2, 3, size[0], size[0] + 4])).tolist()
            reference.text = list(context) if draft.tokens else reference.text
            context.extend(news)
            reference.text = context if mine._fillers is context else reference.text
            mine.observe(step_of(news, draft))
            reference.fill(len(context) - 1)
            assert mine._guesses[0][1:] == [reference.guesses[0, len(context) - 1 + i] for i in range(1, size[0])]


def test_a_column_becomes_a_piece_of_the_targets_own_text():
    """With order 1 each guess follows from the one before it, whatever it began with: after N passes all do."""
    table, drafter, context, size = Table(40, 5, order=1), lookahead(4, 4, 2), [7], 4
    drafter.start((7,))
    for _ in range(size):
        draft = drafter.propose(context, most(4, 4, 2), ANY)
        draft.row_observer(rows_of(table, context, draft))
        context.append(int(table.row(context).argmax()))
        drafter.observe(step_of(context[-1:], draft))
    drafter.propose(context, most(4, 4, 2), ANY)
    for column in range(1, 4):
        first, *rest = (level[column] for level in drafter._guesses)
        own = [first]
        for _ in rest:
            own.append(int(table.row(own).argmax()))
        assert [first, *rest] == own


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", [1, 2])
def test_greedy_output_is_the_targets_own(size, order):
    accepted = 0
    for seed in range(12):
        table = Table(6, seed, order=order)
        for prompt in ((2,), (0, 1, 2, 0, 1)):
            events = run(FakeTarget(table), prompt, lookahead(*size, seed), policy=ANY, max_tokens=50)
            assert tokens_of(events) == tokens_of(run(FakeTarget(table), prompt, max_tokens=50))
            assert events[-1].notes == ()
            accepted += Metrics.of(events).accepted
    assert accepted > 100, "the test means nothing unless drafts stand"


def test_it_takes_turns_with_another_and_stays_the_targets_own():
    class Now(LookaheadDrafter):
        """Every third time it has something to say."""

        name, asked = "now", 0

        def propose(self, context, budget, policy):
            self.asked += 1
            return Draft((context[0],), None, self.name) if self.asked % 3 == 0 else NO_DRAFT

    for seed in range(8):
        table = Table(6, seed, order=2)
        chain = ChainDrafter([Now(1, 2, 1, np.random.default_rng(0)), lookahead(5, 4, 3, seed)])
        events = run(FakeTarget(table), (1,), chain, policy=ANY, max_tokens=60)
        assert tokens_of(events) == tokens_of(run(FakeTarget(table), (1,), max_tokens=60))
        used = Counter(event.source for event in events if isinstance(event, Step))
        assert used["now"] > 3 and used["lookahead"] > 3 and events[-1].notes == ()


@pytest.mark.parametrize("size", SIZES)
def test_siblings_differ_and_the_budget_is_kept(size):
    table, rng = Table(4, 1), np.random.default_rng(2)
    drafter, context, window = lookahead(*size), [0, 1, 2, 3, 0, 1], size[0] * (size[1] - 1) - 1
    drafter.start(tuple(context))
    drafted = 0
    for _ in range(120):
        budget = int(rng.integers(1, most(*size) + 3))
        draft = drafter.propose(context, budget, ANY)
        places = list(zip(draft.parents or (), draft.tokens, strict=True))
        assert len(places) == len(set(places)) == len(draft.tokens) <= budget
        assert not draft.tokens or budget >= window, "the one is of no use without the other"
        leaves = set(range(len(draft.tokens))) - set(draft.parents or ())
        assert len(leaves) <= size[0] + size[2], "there is a sequence for each branch, and no more"
        drafted += bool(draft.tokens)
        if draft.tokens:
            draft.row_observer(rows_of(table, context, draft))
        context.append(int(rng.integers(4)))
        drafter.observe(step_of(context[-1:], draft))
    assert drafted > 10
    assert max(len(found) for found in drafter._pool.values()) == min(size[2], 4 ** (size[1] - 1))


def test_ngrams_of_the_text_are_proposed_the_latest_first():
    drafter = lookahead(1, 3, 2)
    drafter.start((9,))
    draft = drafter.propose([5, 1, 1, 5, 2, 2, 5, 3, 3, 5, 2, 2, 9, 5], 50, ANY)
    assert [path for path in paths_of(draft) if len(path) == 2][:2] == [(2, 2), (3, 3)]
    assert (1, 1) not in paths_of(draft), "two at most, and these are the latest"


def test_a_policy_that_wants_nothing_gets_nothing_and_the_window_moves_on():
    class No(FixedLength):
        def should_draft(self, drafted, confidence, candidate=None):
            return False

    drafter = lookahead(3, 3, 2)
    drafter.start((1, 2, 3))
    before = [list(level) for level in drafter._guesses]
    assert drafter.propose([1, 2, 3], 50, No(1)) is NO_DRAFT
    drafter.observe(step_of([4, 5]))
    assert [level[:1] for level in drafter._guesses] == [level[2:] for level in before]


def test_a_new_prompt_is_a_new_start():
    drafter = lookahead(3, 3, 2)
    drafter.start((1, 2))
    drafter.propose([1, 2, 1, 2, 1], 50, ANY)
    drafter.start((7,))
    draft = drafter.propose([7, 1], 50, ANY)
    assert set(draft.tokens) <= {7}, "nothing is left of the first text"


@pytest.mark.parametrize("size", [(7, 4, 7), (5, 5, 3), (3, 3, 4)])
def test_what_repeats_itself_is_soon_known_whole(size):
    target = Counting(9)
    events = run(FakeTarget(target), (0,), lookahead(*size), policy=ANY, max_tokens=300)
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), (0,), max_tokens=300))
    late = [event for event in events if isinstance(event, Step)][20:-1]
    assert min(len(event.tokens) for event in late) >= size[1]


def test_a_witness_that_fails_costs_no_token():
    class Failing(LookaheadDrafter):
        def _improve(self, logits):
            raise RuntimeError("out of order")

    drafter = Failing(5, 4, 5, np.random.default_rng(0))
    events = run(FakeTarget(Counting(6)), (0,), drafter, policy=ANY, max_tokens=30)
    assert tokens_of(events) == tokens_of(run(FakeTarget(Counting(6)), (0,), max_tokens=30))
    assert "out of order" in events[-1].notes[0]
    steps = [event for event in events if isinstance(event, Step)]
    assert [bool(step.drafted) for step in steps[:3]] == [False, True, False]


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_a_step_that_ends_the_answer(max_tokens):
    for end in (-1, 3):
        own = run(FakeTarget(Counting(7)), (0, 1, 2, 3, 4, 5, 6, 0), max_tokens=max_tokens, end=end)
        prompt = (0, 1, 2, 3, 4, 5, 6, 0)
        events = run(FakeTarget(Counting(7)), prompt, lookahead(2, 3, 3), max_tokens=max_tokens, end=end, policy=ANY)
        assert tokens_of(events) == tokens_of(own) and events[-1].reason == own[-1].reason


@pytest.mark.parametrize("n_ctx", [*range(6, 14), 40])
def test_the_end_of_the_context(n_ctx):
    own = run(FakeTarget(Counting(7), n_ctx), (0, 1, 2), max_tokens=99)
    target = FakeTarget(Counting(7), n_ctx)
    events = run(target, (0, 1, 2), lookahead(2, 3, 3), policy=ANY, max_tokens=99)
    assert tokens_of(events) == tokens_of(own) and events[-1].reason == own[-1].reason == "context"


# --- sampled ---

SAMPLED = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CUT = SamplingSettings(temperature=0.9, top_k=4, top_p=0.9, min_p=0.02, repeat_penalty=1.3)
REPEATING = (2, 3, 0, 1, 4, 2, 3, 0, 1, 2, 2, 3, 0, 1, 0, 2, 3, *PROMPT)


def chance(rule, sampling, n=2000, kind=LookaheadDrafter, seed=31):
    """The p-value of sampled continuations against the target's own distribution."""
    target, counts, accepted = Table(V, seed), Counter(), 0
    prompt = PROMPT if sampling.penalises else REPEATING  # penalties look at all of it, `exact` at its end
    for i in range(n):
        drafter = kind(3, 3, 3, np.random.default_rng([i, 1]))
        events = run(FakeTarget(target), prompt, drafter, 1, 4, sampling, rule, i, policy=ANY, enough=3)
        counts[tuple(tokens_of(events)[:3])] += 1
        accepted += sum(event.accepted for event in events if isinstance(event, Step))
    assert accepted > n / 10, "the test means nothing unless drafts stand"
    return p_value(counts, exact(target, sampling, 3), n)


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", [SAMPLED, CUT])
def test_sampled_output_has_the_targets_distribution(rule, sampling):
    assert chance(rule, sampling) > 1e-4


class Claiming(LookaheadDrafter):
    """Says that its tokens were drawn, though it chose them."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        q = tuple(Categorical(None, np.full(V, 1 / V)) for _ in draft.tokens)
        return Draft(draft.tokens, q or None, draft.source, draft.parents, draft.row_observer)


def test_a_claim_to_have_drawn_would_be_seen():
    assert chance("rejection", SAMPLED, kind=Claiming) < 1e-6


def gullible(draft, logits, sampler, rng):
    """Takes the first path as it is."""
    path, at = [], -1
    while children := draft.children(at):
        at = children[0]
        path.append(at)
    verdict = accept.match(Draft(), logits[at + 1 :], sampler, rng)
    return Verdict(tuple(path), verdict.token, "bonus" if path else "plain")


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_a_rule_that_believes_it_would_be_seen(rule, monkeypatch):
    monkeypatch.setitem(rules.RULES, rule, gullible)
    assert chance(rule, SAMPLED, n=1500) < 1e-6


def test_match_with_a_seed_gives_the_very_text_of_the_target_alone():
    for seed in range(10):
        table = Table(12, seed)
        same = {"max_tokens": 50, "settings": CUT, "rule": "match", "seed": seed}
        events = run(FakeTarget(table), (1, 2), lookahead(5, 4, 5, seed), policy=ANY, **same)
        assert tokens_of(events) == tokens_of(run(FakeTarget(table), (1, 2), **same))
        assert Metrics.of(events).drafted > 0
