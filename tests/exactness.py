"""Exact distributions: of what the target alone would write, and of what a step or an answer with a drafter gives.

A `Walk` runs a function once for each way in which its random numbers can fall. A uniform number is only ever compared
with thresholds, so it is kept as an interval: a threshold inside it splits it, and both parts are walked with their
probabilities. Nothing is sampled, and two distributions can be compared to the last bits of a double.
"""

import functools
import itertools
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from fakes import GREEDY, FakeDraftModel, FakeTarget, Table, drafts_of, run, tokens_of
from scipy.special import chdtrc

from specdec_cli.decoding.accept import match
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import RULES, sampler_of
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter

PROMPT = (0, 1)
V = 5
COMBINATIONS = [
    SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingOptions(temperature=0.7, top_k=3, top_p=1.0, min_p=0.0),
    SamplingOptions(temperature=1.5, top_k=0, top_p=0.8, min_p=0.0),
    SamplingOptions(temperature=0.9, top_k=0, top_p=1.0, min_p=0.15),
    SamplingOptions(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05),
    SamplingOptions(temperature=1.0, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2, top_k=0, min_p=0),
]
PLAIN = COMBINATIONS[0]
TEXTS = pytest.mark.parametrize(
    ("rule", "sampling"),
    [("match", GREEDY), ("match", COMBINATIONS[4]), ("coupled", GREEDY), ("coupled", COMBINATIONS[5])],
)
"""What `own_text` is true of: greedy and sampled."""
EXACT, WRONG = 1e-12, 1e-6
"""How far off a right rule may be, and how far off a wrong one must be."""
_ROUNDING = 1e-15
"""A threshold so near to the end of an interval is its end."""


def exact(table, sampling, length, prompt=PROMPT, constraint=None):
    """The probability of every continuation of a prompt, by the chain rule over the target's own distributions."""
    context = []
    sampler = StandardSampler(sampling, constraint=constraint)
    sampler.follow(context, len(prompt))
    continuations = {}
    for tokens in itertools.product(range(table.n_vocab), repeat=length):
        prob = 1.0
        for i, token in enumerate(tokens):
            context[:] = [*prompt, *tokens[:i]]
            prob *= sampler.categorical(table.row(context)).prob(token)
        if prob > 0:
            continuations[tokens] = prob
    return continuations


def p_value(counts, expected, n):
    """Pearson's chi-square; cells expected fewer than 5 times are pooled; anything impossible is a failure."""
    if any(cell not in expected for cell in counts):
        return 0.0
    rare = [cell for cell, prob in expected.items() if prob * n < 5]
    cells = [(counts[cell], prob * n) for cell, prob in expected.items() if prob * n >= 5]
    if rare:
        cells.append((sum(counts[cell] for cell in rare), sum(expected[cell] for cell in rare) * n))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return float(chdtrc(len(cells) - 1, statistic)) if len(cells) > 1 else 1.0


def own_text(make, n_vocab, rule, sampling, prompt, policy=FixedLength, max_tokens=60, orders=(1,)):
    """Greedily or with a seed the text is the target's own: the steps with drafts, of five targets. make: a drafter, of
    a target's table and a sampler; policy: of a draft length.
    """
    steps = []
    for seed, k in enumerate((1, 2, 3, 5, 8)):
        target, sampler = Table(n_vocab, seed, orders[seed % len(orders)]), sampler_of(rule, sampling, seed)
        events = run(
            FakeTarget(target), prompt, make(target, sampler), max_tokens=max_tokens, rule=rule, seed=seed,
            policy=policy(k), sampler=sampler,
        )  # fmt: skip
        assert tokens_of(events) == _alone(n_vocab, seed, target.order, prompt, rule, sampling, max_tokens)
        assert events[-1].notes == ()
        steps += drafts_of(events)
    assert sum(step.accepted for step in steps) > 10, "nothing shows unless some stands"
    return steps


@functools.cache
def _alone(n_vocab, seed, order, prompt, rule, sampling, max_tokens):
    target = FakeTarget(Table(n_vocab, seed, order))
    return tokens_of(run(target, prompt, max_tokens=max_tokens, settings=sampling, rule=rule, seed=seed))


class Walk:
    """A random generator whose outcomes are enumerated; made for `outcomes`."""

    def __init__(self, choices):
        self.prob = 1.0
        self.choices = choices
        """The parts taken so far, each as [part, probabilities of all parts]."""
        self._at = 0

    def random(self):
        return Uniform(self)

    def integers(self, n):
        return self.choose([1 / n] * n)

    def choose(self, probs):
        if self._at == len(self.choices):
            self.choices.append([0, probs])
        part, probs = self.choices[self._at]
        self._at += 1
        self.prob *= probs[part]
        return part


class Uniform:
    """scale * u + shift, where u is uniform in an interval. All that can be done with it is to compare it."""

    def __init__(self, walk, ends=None, scale=1.0, shift=0.0):
        self._walk, self._ends, self._scale, self._shift = walk, ends or [0.0, 1.0], scale, shift

    def __mul__(self, factor):
        return Uniform(self._walk, self._ends, self._scale * float(factor), self._shift * float(factor))

    def __sub__(self, less):
        return Uniform(self._walk, self._ends, self._scale, self._shift - float(less))

    def __lt__(self, other):
        if other is self:  # as numpy's searchsorted asks
            return False
        if self._scale == 0:
            return self._shift < other
        threshold = (float(other) - self._shift) / self._scale
        low, high = self._ends
        if threshold <= low + _ROUNDING:
            return False
        if threshold >= high - _ROUNDING:
            return True
        below = (threshold - low) / (high - low)
        part = self._walk.choose([below, 1 - below])
        self._ends[1 - part] = threshold
        return part == 0

    def __gt__(self, other):
        return other is not self and not self < other

    def __ge__(self, other):
        return not self < other


def outcomes(run):
    """(probability, result) of `run` for each way in which the numbers of the generator it is given can fall."""
    choices = []
    while True:
        walk = Walk(choices)
        result = run(walk)
        yield walk.prob, result
        while choices and choices[-1][0] == len(choices[-1][1]) - 1:
            choices.pop()
        if not choices:
            return
        choices[-1][0] += 1


class Doubles(Table):
    """Logits in double precision, so that probabilities add up to 1 to 1e-15."""

    def _made(self, key):
        return super()._made(key).astype(np.float64)


def pair(seed, share=0.4, n_vocab=V):
    """Scripted logits of a target and of a draft model that resembles it."""
    target, noise = (Doubles(n_vocab, each) for each in (seed, seed + 1))
    return target, target.mixed(noise, share)


def with_a_model(draft, rule, width=1, drafter_class=ModelDrafter):
    """What makes a drafter over scripted logits, given a sampler and a generator."""
    return lambda sampler, rng: drafter_class(
        FakeDraftModel(draft), draft.n_vocab, sampler, rule == "rejection", rng, width
    )


@dataclass
class Compared:
    """All that can come of one step of draft and verify, compared with the target's own distribution.

    error: how far the step's tokens are from it, at the worst. shapes: of the drafts (`Draft.parents`). As
    probabilities: deep, that two draft tokens stand; younger, that one stands whose elder sibling does not.
    """

    error: float
    shapes: Counter = field(default_factory=Counter)
    deep: float = 0.0
    younger: float = 0.0


def compared(target, make_drafter, policy, sampling, rule, prompts=(PROMPT,)):
    """One step after any of the prompts. make_drafter: of a sampler and a generator.

    Wherever a step goes on after some tokens, the next one must be distributed as p after them. If so, a step leaves
    the distribution of any continuation as it is, and by induction all steps do.
    """
    context = []
    sampler = StandardSampler(sampling)
    sampler.follow(context)
    begins, ends = defaultdict(float), defaultdict(float)
    result = Compared(0.0)
    for prompt in prompts:
        context[:] = prompt
        for prob, draft, verdict in _step(make_drafter, policy, sampler, rule, context, target):
            tokens = (*prompt, *(draft.tokens[node] for node in verdict.path), verdict.token)
            ends[tokens] += prob
            for length in range(len(prompt), len(tokens) + 1):
                begins[tokens[:length]] += prob
            share = prob / len(prompts)
            if draft.tokens:
                result.shapes[draft.parents] += share
            result.deep += share * (verdict.accepted >= 2)
            places = zip((-1, *verdict.path), verdict.path, strict=False)
            result.younger += share * any(draft.children(above)[0] != node for above, node in places)
        assert abs(begins[prompt] - 1) < EXACT
    for tokens, prob in list(begins.items()):
        going = prob - ends[tokens]
        if going > EXACT:
            context[:] = tokens
            p = sampler.categorical(target.row(context))
            off = [abs(begins.get((*tokens, x), 0.0) - going * p.prob(x)) for x in range(target.n_vocab)]
            result.error = max(result.error, *off)
    return result


class Whims(FixedLength):
    """What stands is anybody's guess, so that trees take any shape that the draws before a token suggest."""

    def rate(self, rank, confidence):
        return 0.2 + zlib.crc32(repr((rank, confidence)).encode()) % 97 / 160


def tree_step(width, rule, policy, sampling=PLAIN, seed=11, share=0.4, drafter_class=ModelDrafter):
    """`compared`, with a tree of a model that resembles the target of that seed."""
    target, draft = pair(seed, share, 4)
    prompts = [(1, token) for token in range(4)]
    return compared(target, with_a_model(draft, rule, width, drafter_class), policy, sampling, rule, prompts)


def _step(make_drafter, policy, sampler, rule, context, target):
    """(probability, draft, verdict) for each way in which a step can go."""

    def propose(rng):
        drafter = make_drafter(sampler, rng)
        drafter.start(context)
        return drafter.propose(context, policy.limit(100), policy)

    for drafted, draft in outcomes(propose):
        model = FakeTarget(target)
        model.prefill(context[:-1])
        rows = model.verify(context[-1], draft)
        for judged, verdict in outcomes(lambda rng, draft=draft, rows=rows: RULES[rule](draft, rows, sampler, rng)):
            yield drafted * judged, draft, verdict


def error_of_answers(
    target,
    make_drafter,
    make_policy,
    sampling,
    rule,
    length=3,
    prompt=PROMPT,
    constraints=(lambda: None, lambda: None),
):
    """How far the first tokens of whole answers are from the target's own distribution, at the worst.

    constraints: make what binds the target alone, and the answers.
    """
    written = defaultdict(float)
    right, tried = constraints

    def answer(rng):
        sampler = StandardSampler(sampling, constraint=tried())
        drafter, policy = make_drafter(sampler, rng), make_policy()
        events = run(
            FakeTarget(target), prompt, drafter, max_tokens=length + 9, rule=rule, rng=rng, sampler=sampler,
            policy=policy, enough=length,
        )  # fmt: skip
        return tuple(tokens_of(events)[:length])

    for prob, tokens in outcomes(answer):
        written[tokens] += prob
    expected = exact(target, sampling, length, prompt, right())
    return max(abs(written[key] - expected.get(key, 0.0)) for key in {*written, *expected})


def check(rule, k, sampling, seed, n=2000, share=0.4):
    """The p-value of continuations of three tokens over n runs of the loop with a draft model."""
    target, counts, drafter_rng = Table(V, seed), Counter(), np.random.default_rng(7)
    draft = target.mixed(Table(V, seed + 1), share)
    for run_seed in range(1000, 1000 + n):
        sampler = StandardSampler(sampling)
        drafter = ModelDrafter(FakeDraftModel(draft), V, sampler, rule == "rejection", drafter_rng)
        events = run(FakeTarget(target), PROMPT, drafter, k, 3 + k, sampling, rule, run_seed, sampler=sampler, enough=3)
        # The first token comes from the prompt's own pass; the draft is at work from the second on.
        counts[tuple(tokens_of(events)[:3])] += 1
    return p_value(counts, exact(target, sampling, 3), n)


def credulous(draft, logits, sampler, rng):
    """A wrong rule: the draft's first token stands, whatever it is."""
    return Verdict((), draft.tokens[0], "correction") if draft.tokens else match(draft, logits, sampler, rng)


def spoilt(rule):
    """A bug as one might plant it: what follows a draft is the second best token."""
    honest = RULES[rule]

    def second_best(draft, logits, sampler, rng):
        verdict = honest(draft, logits, sampler, rng)
        return replace(verdict, token=int(logits[verdict.accepted].argsort()[-2])) if draft.tokens else verdict

    return second_best
