"""`--bitwise` on the bundled pair: which passes agree is measured, and answers keep to them."""

from dataclasses import replace

import numpy as np
import pytest
from engines import open_session
from fakes import tokens_of
from prompts import PROMPTS

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.llama import pass_probes
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure.compare import ComparisonRun
from specdec_cli.measure.suites import choose_prompts
from specdec_cli.measure.variants import Variant
from specdec_cli.settings.options import SpeculativeConfig
from specdec_cli.weights import pass_costs

LONG = "x = [1, 2, 3]\n" * 40
"""More than the 256 tokens from which two threads, which tests of real models use, read a single token otherwise."""
TOKENS = [5 + 7 * i % 900 for i in range(400)]


@pytest.fixture
def context(opened):
    return opened("target", n_ctx=640)


class Jagged:
    """A context whose rows depend on the place and on the width of the pass alone."""

    n_vocab, rewinds, threads, passes = 4, True, 1, 0

    def __init__(self, bias=lambda width, length: 0.0, n_ctx=512, max_rows=9):
        self.n_ctx, self.max_rows, self.length, self._bias = n_ctx, max_rows, 0, bias

    def decode(self, tokens, all_rows=False):
        rows = np.zeros((len(tokens), self.n_vocab), np.float32)
        rows[:, 0] = np.arange(self.length, self.length + len(tokens))
        rows[:, 1] = self._bias(len(tokens), self.length)
        self.length += len(tokens)
        self.passes += 1
        return rows if all_rows else rows[-1:]

    def rewind(self, length):
        self.length = min(self.length, length)


BIASES = {
    "all agree": (lambda width, length: 0.0, 1, 9, {}),
    "from 4 on": (lambda width, length: 0.5 * (width > 3), 1, 3, {4: 0.5, 5: 0.5}),
    "one alone": (lambda width, length: 0.25 * (width == 1), 2, 9, {1: 0.25}),
    "one alone, in long contexts": (lambda width, length: 0.25 * (width == 1 and length > 256), 2, 9, {1: 0.25}),
    "none": (lambda width, length: float(width), 1, 1, {2: 1.0, 3: 2.0}),
    "not 3": (lambda width, length: float(width == 3), 1, 2, {3: 1.0}),
    "not 2": (lambda width, length: float(width == 2), 1, 1, {2: 1.0}),
    "none in long ones": (lambda width, length: width * float(length > 256), 1, 1, {2: 1.0, 3: 2.0}),
}


@pytest.mark.parametrize(("bias", "reference", "widest", "off"), BIASES.values(), ids=BIASES)
def test_what_agrees_is_found(bias, reference, widest, off):
    jagged = Jagged(bias)
    found = pass_probes.measure_agreement(jagged, [5, 6, 7])
    assert (found.reference, found.widest, dict(found.off)) == (reference, widest, off)
    assert found.contexts == (96, 320) and jagged.passes < 250
    if reference == 2:  # where a pass of two is the widest, and differs
        found = pass_probes.measure_agreement(Jagged(bias, max_rows=2), [5])
        assert (found.reference, found.widest, dict(found.off)) == (1, 1, {2: 0.25})


@pytest.mark.parametrize(
    ("n_ctx", "contexts"), [(330, (96, 311)), (300, (96, 281)), (256, (96,)), (40, (21,)), (3, (0,))]
)
def test_a_short_context_is_measured_as_far_as_it_goes(n_ctx, contexts):
    found = pass_probes.measure_agreement(Jagged(n_ctx=n_ctx), [5])
    assert found.contexts == contexts


def test_the_bundled_target_agrees_with_itself(context):
    found = pass_probes.measure_agreement(context, TOKENS)
    assert found.widest > found.reference and context.length == 0


@pytest.mark.parametrize("fill", [100, 320])
def test_chunks_give_the_bits_of_the_reference_and_read_no_more_than_is_asked(context, fill):
    """Rows of a draft of eight, read three at a time, against single tokens read as the reference says."""
    expected = []
    target = LlamaTarget(context, Agreement(2, 3, context.threads, (96, 320), {}))
    target.prefill(TOKENS[:fill])
    for token in TOKENS[fill : fill + 9]:
        expected.append(np.array(target.verify(token, Draft())[0]))
        target.commit(Verdict((), 0, "plain"))
    draft = Draft(tuple(TOKENS[fill + 1 : fill + 9]))
    for accepted in (8, 1):
        target.prefill(TOKENS[:fill])
        rows = target.verify(TOKENS[fill], draft)
        assert target.length == fill + 3, "one chunk has been read"
        for number in range(accepted + 1):
            assert np.array_equal(rows[number], expected[number])
        target.commit(Verdict(tuple(range(accepted)), 0, "correction"))
        assert target.length == fill + 1 + accepted


def test_many_tokens_are_read_again_in_chunks_that_agree(context, monkeypatch):
    monkeypatch.setattr("specdec_cli.llama.target.N_BATCH", 16)
    target, sizes = LlamaTarget(context, Agreement(2, 3, context.threads, (96, 320), {})), []
    target.prefill([5, 6, 7])
    target.commit(Verdict((), 0, "plain"), unread=[5] * 20)
    context.passes.on_pass = lambda tokens, seconds: sizes.append(tokens)
    target.verify(7, Draft())
    assert sizes == [3] * 7


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"temperature": 0.8, "accept": "coupled"}, marks=pytest.mark.slow),
        pytest.param({"temperature": 0.8, "accept": "match"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_answer_is_the_targets_own(changes):
    kinds = ("model", 2), ("model", 8), ("model", "auto"), ("ngram", 8), ("ngram+model", "auto")
    ways = [{"drafter": drafter, "draft_tokens": k} for drafter, k in kinds]
    with open_session(360, ways, max_tokens=32, bitwise=True, **changes) as session:
        settings = session.settings
        prompts = [session.tokenize(text, raw=True) for text in (PROMPTS[0], LONG)]
        for seed, prompt in enumerate(prompts):
            own = tokens_of(session.events(prompt, seed, settings=settings.alone()))
            for way in ways:
                events = list(session.events(prompt, seed, settings=replace(settings, **way)))
                assert events[-1].notes == ()
                assert tokens_of(events) == own, way


def test_a_broken_promise_is_a_bug_even_if_it_is_rounding(monkeypatch):
    """If passes do not agree where they did when measured, the user was promised too much."""
    with open_session(draft_tokens=4, max_tokens=40, bitwise=True) as session:
        settings, prompt = session.settings, session.tokenize(PROMPTS[0], raw=True)
        decode = LlamaContext.decode

        def rounds(self, tokens, all_rows=False):
            rows = decode(self, tokens, all_rows)
            if all_rows and len(tokens) > 1 and self is session.models.target.open_kv:
                rows = np.array(rows)
                rows[:, rows[0].argsort()[-2]] += 3.0
            return rows

        session.costs.measure_agreement(prompt)
        alone = Transcript.of(session.events(prompt, 0, settings=settings.alone()))
        monkeypatch.setattr(LlamaContext, "decode", rounds)
        answer = Transcript.of(session.events(prompt, 0))
        assert alone.tokens != answer.tokens
        divergence = session.divergence(prompt, alone, answer, 0, settings)
        assert "agreed bit for bit when measured differ here" in divergence.bug


def test_only_bitwise_answers_say_that_bitwise_is_slower(monkeypatch, nothing_known):
    monkeypatch.setattr(pass_costs, "measure_agreement", lambda *_: Agreement(2, 3, 1, (96, 320), {1: 0.4}))
    with open_session(drafter="none", max_tokens=2, ctx=640) as session:
        kinds = [SpeculativeConfig(bitwise=on) for on in (True, False, True)]
        notes = [session.generate("x", speculative=kind).notes for kind in kinds]
        assert [sum("a pass over two" in note for note in each) for each in notes] == [1, 0, 1]
        compared = ComparisonRun(session.settings, [Variant("b", "b", replace(session.settings, bitwise=True))], 1)
        found = compared.run(session, choose_prompts("", ["x"]), None, True, lambda *_: None)
        assert any("a pass over two" in note for note in found.notes)


@pytest.mark.parametrize("k", [8, "auto"])
def test_no_pass_is_wider_than_what_agrees(monkeypatch, nothing_known, k):
    monkeypatch.setattr(pass_costs, "measure_agreement", lambda *_: Agreement(1, 3, 1, (96, 320), {4: 0.4}))
    with open_session(drafter="ngram", draft_tokens=k, max_tokens=60, bitwise=True, ctx=640) as session:
        settings, prompt = session.settings, session.tokenize(LONG, raw=True)
        session.drafting.policy(settings, prompt)  # measures, with passes of all sizes
        sizes = []
        session.models.target.open_kv.passes.on_pass = lambda tokens, seconds: sizes.append(tokens)
        report = Metrics.of(session.events(prompt, 0))
        assert sum(sizes[:4]) == len(prompt), "the prompt comes first"
        assert max(sizes[4:]) <= 3
        assert k == "auto" or report.drafted > 8
