"""`-k auto` on the bundled pair: the same text, lengths that follow the costs, the acceptance that theory gives."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from engines import open_engine
from prompts import PROMPTS
from timed import FLAT, STEEP

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Done, Step, Token
from specdec_cli.engine import proof
from specdec_cli.engine.config import Settings
from specdec_cli.engine.generation import GenerationResult, crowding_notes, to_json


def scaled(costs, one):
    """The same machine, with a single token taking `one` second."""
    factor = one / costs.verify(1)
    return Costs(*(Curve({n: s * factor for n, s in curve.points.items()}) for curve in (costs.verify, costs.draft)))


def open_auto(monkeypatch, costs=None, **changes):
    """An engine whose `auto` is told these costs, and that times follow them; else what is measured here."""
    engine = open_engine(draft_tokens="auto", **changes)
    if costs is not None:
        monkeypatch.setattr(engine.costs, "of_pair", lambda text: costs)
        monkeypatch.setattr("specdec_cli.draft_length.cost_model.CostModel.observe", lambda *_: None)
        monkeypatch.setattr("specdec_cli.draft_length.budgets._MOST_LOSS", 1e9)
        monkeypatch.setattr("specdec_cli.draft_length.budgets._LOSS", 1e9)
    return engine


@pytest.mark.parametrize(("costs", "prompts"), [(FLAT, PROMPTS[::4]), (None, PROMPTS[::8])], ids=["told", "measured"])
def test_greedy_text_is_the_targets_own(monkeypatch, costs, prompts):
    with open_auto(monkeypatch, costs and scaled(costs, 0.0003)) as engine:
        drafted = set()
        for text in prompts:
            prompt = engine.tokenize(text, raw=True)
            alone = Metrics.of(engine.events(prompt, 0, settings=engine.settings.alone()))
            report = Metrics.of(engine.events(prompt, 0))
            own, mine = Transcript.of(alone.history), Transcript.of(report.history)
            found = proof.divergence(engine, prompt, own, mine, 0, engine.settings)
            assert found is None or not found.bug
            assert report.notes == ()
            drafted |= {n for n, count in enumerate(report.lengths) if count}
        assert costs is None or drafted >= {1, 2, 3, 4}


def test_match_gives_the_very_text_that_the_target_samples(monkeypatch):
    with open_auto(monkeypatch, scaled(FLAT, 0.0003), temp=0.8, accept="match") as engine:
        drafted = same = 0
        for seed, text in enumerate(PROMPTS[:8]):
            prompt = engine.tokenize(text, raw=True)
            alone = Metrics.of(engine.events(prompt, seed, settings=engine.settings.alone()))
            report = Metrics.of(engine.events(prompt, seed))
            same += report.tokens == alone.tokens
            drafted += report.drafted
        assert drafted > 60
        assert same >= 7  # a draw that falls within rounding of a boundary may differ


def test_where_drafting_does_not_pay_the_draft_model_is_not_even_read(monkeypatch):
    with open_engine(draft_tokens="auto") as engine:
        monkeypatch.setattr(engine.costs, "of_pair", lambda text: scaled(STEEP, 0.0003))
        prompt = engine.tokenize(PROMPTS[0] * 30, raw=True)
        report = Metrics.of(engine.events(prompt, 0))
        assert report.drafted == 0 and report.draft_prefill_s == 0.0
        assert report.probed_tokens_per_s is None


def test_hindsight_is_what_the_draft_would_have_done(monkeypatch):
    """What the draft model says of places it missed agrees with what it says when it drafts there."""
    heard = []
    with open_auto(monkeypatch, scaled(FLAT, 0.0003)) as engine:
        prompt = engine.tokenize("def mean(values):\n", raw=True)
        policy = engine.drafting.policy(engine.settings, prompt)
        monkeypatch.setattr(policy, "observe_counterfactual", lambda sure, outcome: heard.append((sure, outcome)))
        steps = iter([0] * 20 + [1] * 1000)  # twenty steps without a draft, then drafts of one
        monkeypatch.setattr(policy, "limit", lambda room: min(next(steps), room))
        monkeypatch.setattr(policy, "should_draft", lambda drafted, sure: True)
        report = Metrics.of(engine.events(prompt, 0))
        own = report.tokens
        model = engine.models.contexts[1]
        model.rewind(0)
        model.decode(prompt)
        expected = []
        for token, following in pairwise(own[:21]):
            row = model.decode((token,))[0]
            expected.append((1 / np.exp(row - row.max()).sum(), float(row.argmax() == following)))
        for (sure, outcome), (known, right) in zip(heard, expected, strict=True):
            assert outcome == right and sure == pytest.approx(known, rel=1e-3)


@pytest.mark.slow
def test_acceptance_at_a_temperature_is_the_overlap(monkeypatch):
    """With `rejection`, every draft token stands with probability sum(min(p, q)): within 1 % over many tokens."""
    with open_auto(monkeypatch, scaled(FLAT, 0.0003), temp=0.8, max_tokens=200) as engine:
        target, draft = engine.models.contexts
        sampler = StandardSampler(engine.settings.sampling)
        overlaps, accepted, tried = [], 0, 0
        for seed, text in enumerate(PROMPTS[:12]):
            prompt = engine.tokenize(text, raw=True)
            tokens = list(prompt)
            places = []
            for event in engine.events(prompt, seed):
                if not hasattr(event, "drafted"):
                    continue
                reached = min(event.accepted + 1, len(event.drafted))
                places += [len(tokens) + i for i in range(reached)]
                accepted += event.accepted
                tried += reached
                tokens += [token.id for token in event.tokens]
            target.rewind(0)
            draft.rewind(0)
            for start in range(0, len(tokens), 16):
                piece = tokens[start : start + 16]
                rows = target.decode(piece, all_rows=True), draft.decode(piece, all_rows=True)
                for place in sorted({*range(start + 1, start + len(piece) + 1)} & {*places}):
                    p, q = (sampler.categorical(found[place - start - 1]) for found in rows)
                    overlaps.append(sum(min(prob, q.prob(int(x))) for x, prob in zip(p.ids, p.probs, strict=True)))
        assert tried == len(overlaps) > 1000
        spread = (np.mean(overlaps) * (1 - np.mean(overlaps)) / tried) ** 0.5
        assert abs(accepted / tried - np.mean(overlaps)) < 3 * spread


def result_of(*took):
    """Of an answer whose steps drafted so many tokens, and took so many seconds to draft and to verify."""
    result = GenerationResult(Settings(), 0, [1])
    at = 0.0
    for index, (drafted, draft_s, verify_s) in enumerate([(0, 0.0, 0.0), *took]):
        at += draft_s + verify_s
        token = (Token(1, "", "plain"),)
        result.add(Step(index, token, (2,) * drafted, 0, ("",) * drafted, "model", draft_s, verify_s, 0.0, at))
    result.add(Done("length", "", (), at))
    result.take_probed_baseline()
    return result


def test_the_baseline_comes_from_the_runs_own_probes():
    """From steps without a draft that follow two such, unless the drafter was asked at length."""
    plain, draft, asked, first = (0, 0.0, 0.2), (2, 0.1, 0.3), (0, 0.1, 0.2), ((0, 0.0, 9.0), (0, 0.0, 7.0))
    with open_engine() as engine:
        engine.open(8)
        found = to_json(result_of(*first, plain, draft, *first, plain, asked, *first), engine)
        measured = {"method": "probes", "tokens_per_s": pytest.approx(5.0)}
        assert found["baseline"] == {**measured, "identical": None, "first_divergence": None}
        assert found["speedup"] == pytest.approx(found["timing"]["tokens_per_s"] / 5.0)
        for too_few in (*first, plain, draft, *first), (plain,) * 7:
            found = to_json(result_of(*too_few), engine)
            assert found["baseline"] is None and found["speedup"] is None


def test_threads_that_wait_for_each_other_are_noted():
    """Passes of one size are compared with each other; on a GPU, and with one thread, there is nothing to advise."""
    alike, uneven = [(4, 0.1, 0.2)] * 9 + [(0, 0.1, 0.9)] * 9, [(4, 0.1, 0.2)] + [(4, 0.1, 3.0)] * 8

    def notes(took, threads=6, on_gpu=False):
        return crowding_notes(result_of(*took).metrics, SimpleNamespace(threads=threads, on_gpu=on_gpu))

    assert notes(alike) == notes(uneven[:7]) == ()
    (note,) = notes(uneven)
    assert "13 times" in note and "6 threads" in note and "-t 3" in note
    assert notes(uneven, threads=1) == notes(uneven, on_gpu=True) == ()
