"""The bundled pair, for real: answers are the target's own, alone, with chains and trees; and how `-k auto` drafts."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from driver import DEMO
from engines import open_session
from fakes import tokens_of
from prompts import PROMPTS
from timed import FLAT, STEEP, scaled

from specdec_cli.decoding.costs import Curve
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, LengthPolicy, Step, Token
from specdec_cli.draft_length.auto import AutoLength
from specdec_cli.draft_length.known_draft import KnownLength
from specdec_cli.engine import drafting
from specdec_cli.engine.baseline import paired_speeds
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.engine.session import to_json
from specdec_cli.llama import computing
from specdec_cli.llama.passes import Passes
from specdec_cli.settings.options import SpeculativeConfig
from specdec_cli.settings.settings import Settings

SAMPLED = {"temperature": 0.8, "accept": "match", "max_tokens": 40}


def open_auto(monkeypatch, costs=FLAT, **changes):
    """An engine whose `auto` is told these costs, and that times follow them; else what is measured here."""
    session = open_session(draft_tokens="auto", **changes)
    if costs is not None:
        costs = scaled(costs, 0.0003)
        monkeypatch.setattr(session.costs, "of_pair", lambda text: costs)
        monkeypatch.setattr("specdec_cli.draft_length.cost_model.CostModel.observe", lambda *_: None)
        monkeypatch.setattr("specdec_cli.draft_length.loss_budget.LossBudget.add", lambda *_: None)
    return session


def against(own, session, prompt, seed=0):
    """An answer's events, and whether it is the target's own; if it is not, rounding made it so."""
    events = list(session.events(prompt, seed))
    divergence = session.divergence(prompt, own, Transcript.of(events), seed, session.settings)
    assert divergence is None or not divergence.bug, str(divergence)
    return events, divergence is None


@pytest.fixture(scope="module")
def alone():
    """A prompt by its number, and what the target alone writes."""
    with open_session(drafter="none") as session:

        @cache
        def written(number, seed=0, sampled=False):
            prompt, settings = session.tokenize(PROMPTS[number], raw=True), session.settings
            settings = replace(settings, **SAMPLED) if sampled else settings
            return prompt, Transcript.of(session.events(prompt, seed, settings=settings))

        yield written


MANY = [(1, 1, 10), (1, 2, 40), (1, 3, 40), (1, 8, 40), (1, 16, 40), (2, 3, 40), (3, 6, 40)]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in MANY]


@pytest.mark.parametrize(("width", "k", "count"), [(1, 4, 10), (4, 8, 10), *SLOW])
def test_greedy_equals_the_target_alone(alone, width, k, count):
    identical = second = 0
    with open_session(draft_tokens=k, tree=width) as session:
        for prompt, own in map(alone, range(count)):
            events, same = against(own, session, prompt)
            assert events[-1].notes == ()
            identical += same
            paths = [event.path for event in events if isinstance(event, Step) and event.path]
            second += sum(path != tuple(range(len(path))) for path in paths)
    assert identical >= 0.9 * count
    # Steps that took a token that was not the first choice: how many, is a matter of the text, which kernels round.
    assert (second > 0) == (width > 1)


@pytest.mark.parametrize(("costs", "every"), [(FLAT, 1), (None, 2)], ids=["told", "measured"])
def test_greedy_text_is_the_targets_own_with_auto(monkeypatch, alone, costs, every):
    with open_auto(monkeypatch, costs) as session:
        reports = [Metrics.of(against(own, session, prompt)[0]) for prompt, own in map(alone, range(0, 10, every))]
    assert all(report.notes == () for report in reports)
    drafted = {n for report in reports for n, count in enumerate(report.lengths) if count}
    assert costs is None or drafted >= {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("width", "k", "least", "drafts"),
    [(1, 4, 5, 60), pytest.param(2, 6, 5, 60, marks=pytest.mark.slow), (4, 6, 5, 60), (1, "auto", 7, 20)],
)
def test_match_with_a_seed_equals_the_sampled_target_alone(monkeypatch, alone, width, k, least, drafts):
    """But for a draw that falls within rounding of a boundary. drafts: more are accepted, whatever kernels round."""
    same = accepted = 0
    opened = open_auto(monkeypatch, **SAMPLED) if k == "auto" else open_session(**SAMPLED, draft_tokens=k, tree=width)
    with opened as session:
        for seed in range(8):
            prompt, own = alone(seed, seed, sampled=True)
            events, identical = against(own, session, prompt, seed)
            same += identical
            accepted += Metrics.of(events).accepted
    assert accepted > drafts and same >= least


@pytest.mark.parametrize(("sampled", "k"), [(False, 3), (False, "auto"), (True, 2)])
def test_a_draft_model_that_reads_on_while_the_target_verifies_changes_no_word(monkeypatch, alone, sampled, k):
    """As on a GPU, but for the time: a CPU has finished a pass when it returns to the program."""
    monkeypatch.setattr(Passes, "overlaps", property(lambda self: True, lambda self, value: None), raising=False)
    monkeypatch.setattr(computing, "turn", lambda offloaded: nullcontext())
    same, saved = 0, list[int]()
    monkeypatch.setattr(LengthPolicy, "observe_saved", lambda self, passes, tokens: saved.append(passes))
    monkeypatch.setattr(AutoLength, "observe_saved", lambda self, passes, tokens: saved.append(passes))
    options = SAMPLED if sampled else {}
    opened = open_auto(monkeypatch) if k == "auto" else open_session(draft_tokens=k, **options)
    with opened as session:
        for number in range(6):
            seed = number + 10 if sampled else 0  # with these seeds, most drafts are accepted as a whole
            prompt, own = alone(number, seed, sampled=sampled)
            events, identical = against(own, session, prompt, seed)
            assert events[-1].notes == ()
            same += identical
    assert same >= 5 and sum(saved) >= 5


@pytest.mark.parametrize(
    ("options", "known"),
    [({}, True), ({"tree": 2}, False), ({"drafter": "medusa", "draft": str(DEMO / "medusa.gguf")}, False)],
)
def test_what_repeated_passes_take_is_known_to_chains_of_a_draft_model(monkeypatch, options, known):
    repeated = Curve({1: 0.001, 3: 0.0012})
    monkeypatch.setattr("specdec_cli.weights.pass_costs.PassCosts.repeated", lambda self, text, one_s: repeated)
    given, made = [], drafting.CostModel
    monkeypatch.setattr(drafting, "CostModel", lambda costs, *others: given.append(costs) or made(costs, *others))
    with open_session(draft_tokens="auto", max_tokens=4, **options) as session:
        tokens_of(session.events(session.tokenize("x = ", raw=True), seed=0))
    assert [costs.repeated for costs in given] == [repeated if known else None]


def test_the_same_seed_gives_the_same_rejection_sample_of_as_many_tokens_as_asked_for():
    with open_session(temperature=0.8, draft_tokens=500, max_tokens=32) as session:
        prompt = session.tokenize("x = ", raw=True)
        first, second = (tokens_of(session.events(prompt, seed=5)) for _ in range(2))
    assert first == second and len(first) == 32


@pytest.mark.parametrize(("whose", "failing"), [(0, 1), (1, 3)])
def test_a_session_survives_an_interrupted_tree(monkeypatch, whose, failing):
    """Ctrl-C in a pass of either model, then another answer from the same caches."""
    with open_session(draft_tokens=8, tree=4, max_tokens=40) as session:
        prompt = session.tokenize("def median(values):\n    return", raw=True)
        expected = tokens_of(session.events(prompt, seed=0))
        context, passes = session.models.contexts[whose], []
        whole = Passes.run

        def interrupted(self, *arguments):
            if self is context.passes and len(context.cache.branches):
                passes.append(self)
                if len(passes) == failing:
                    session.interrupt.set()
                    raise Interrupted
            return whole(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(Passes, "run", interrupted)
            events = list(session.events(prompt, seed=0))
        session.interrupt.clear()
        assert events[-1].reason == "interrupted" and len(passes) == failing
        got = tokens_of(events)
        assert got == expected[: len(got)] and len(got) < 40
        other = session.tokenize(PROMPTS[2], raw=True)
        own = tokens_of(session.events(other, seed=0, settings=session.settings.alone()))
        assert tokens_of(session.events(other, seed=0)) == own
        assert tokens_of(session.events(prompt, seed=0)) == expected


def test_where_drafting_does_not_pay_the_draft_model_is_not_even_read(monkeypatch):
    with open_session(draft_tokens="auto") as session:
        monkeypatch.setattr(session.costs, "of_pair", lambda text: scaled(STEEP, 0.0003))
        prompt = session.tokenize(PROMPTS[0] * 30, raw=True)
        report = Metrics.of(session.events(prompt, 0))
        assert report.drafted == 0 and report.draft_prefill_s == 0.0
        assert report.probed_tokens_per_s is None


@pytest.fixture
def told(monkeypatch):
    """How many unread tokens the policies of a draft model were told of."""
    counts = []

    def begin(self, unread, read_apart=True, begin=AutoLength.begin):
        counts.append(unread)
        begin(self, unread, read_apart)

    monkeypatch.setattr(AutoLength, "begin", begin)
    return counts


@pytest.mark.parametrize("drafter", ["model", "ngram+model"])
def test_a_draft_model_need_not_read_what_it_holds(monkeypatch, told, drafter):
    with open_auto(monkeypatch, drafter=drafter, max_tokens=20) as session:
        first = session.generate(PROMPTS[0], raw=True)
        second = session.generate([*first.prompt, *first.tokens, *first.prompt[:5]])
        assert first.metrics.drafted and told[0] == len(first.prompt) and told[1] < 30 < len(second.prompt)


def test_what_drafting_has_shown_outlives_its_costs(monkeypatch):
    with open_auto(monkeypatch) as session:
        session.open(8)
        before = session.drafting.policy(session.settings, [1])
        session.drafting.forget()
        after = session.drafting.policy(session.settings, [1])
        other = session.drafting.policy(replace(session.settings, draft_min_p=0.5), [1])
        assert after is not before and after._calibration is before._calibration
        assert other._budget is not after._budget, "each has its own"


def test_a_policy_of_ones_own_drafts_no_more_than_asked_for():
    with open_session(draft_tokens="auto") as session:
        session.generate(PROMPTS[0], raw=True)
        for tokens in (4, 2):
            config = SpeculativeConfig(drafter="model", length_policy=LengthPolicy(), draft_tokens=tokens)
            answer = session.generate(PROMPTS[0], speculative=config, raw=True)
            assert max(len(step.drafted) for step in answer.metrics.history) == tokens


def test_a_draft_model_that_cannot_be_timed_leaves_ngram_to_adapt(monkeypatch):
    def failing(text):
        raise SpecdecError("no room", "")

    with open_session(drafter="ngram+model", draft_tokens="auto") as session:
        monkeypatch.setattr(session.costs, "of_pair", failing)
        session.open(8)
        assert isinstance(session.drafting.policy(session.settings, [1]), KnownLength)


def result_of(*took, forced=0):
    """Of an answer whose steps drafted so many tokens, and took so many seconds to draft and to verify. forced: tokens
    that come with each step.
    """
    result = GenerationResult(Settings(), 0, [1])
    at = 0.0
    for index, (drafted, draft_s, verify_s) in enumerate([(0, 0.0, 0.0), *took]):
        at += draft_s + verify_s
        tokens = (Token(1, "", "plain"), *[Token(1, "", "forced")] * forced)
        result.add(Step(index, tokens, (2,) * drafted, 0, ("",) * drafted, "model", draft_s, verify_s, 0.0, at))
    result.add(Done("length", "", (), at))
    result.take_probed_baseline()
    return result


def test_the_baseline_comes_from_the_runs_own_probes():
    """From steps without a draft that follow two such, unless the drafter was asked at length."""
    plain, draft, asked, first = (0, 0.0, 0.2), (2, 0.1, 0.3), (0, 0.1, 0.2), ((0, 0.0, 9.0), (0, 0.0, 7.0))
    with open_session() as session:
        session.open(8)
        found = to_json(result_of(*first, plain, plain, draft, *first, plain, asked, *first), session)
        assert (found["baseline"]["method"], found["baseline"]["tokens_per_s"]) == ("probes", pytest.approx(5.0))
        assert found["speedup"] is None, "two probes are too few for an interval"
        found = to_json(result_of(*[*[draft] * 4, plain, plain, plain] * 3, draft), session)
        assert found["speedup"] == found["baseline"]["speedup"]["mean"] == pytest.approx(22 / 7.0 * 0.2), "of all"
        same = to_json(result_of(*[*[draft] * 4, plain, plain, plain] * 3, draft, forced=3), session)
        assert same["speedup"] == pytest.approx(found["speedup"]), "the target alone gets forced tokens, too"
        assert same["baseline"]["tokens_per_s"] == pytest.approx(4 * found["baseline"]["tokens_per_s"])
        assert same["stats"]["tokens_per_step"] == 4
        for too_few in (*first, plain, plain, draft, *first), (plain,) * 7:
            found = to_json(result_of(*too_few), session)
            assert found["baseline"] is None and found["speedup"] is None


def test_times_that_stand_still_as_in_an_edited_recording_give_no_speedup():
    metrics, token = Metrics(), (Token(1, "", "plain"),)
    for index in range(40):
        drafted = (2,) * (index % 5 == 4)
        metrics.add(Step(index, token, drafted, 0, ("",) * len(drafted), "model", 0.0, 0.1, 0.0, index // 5))
    assert metrics.probe_s and metrics.probed_speedup is None


@pytest.mark.parametrize(("tokens", "parts"), [(72, [(start, 12) for start in range(0, 72, 12)]), (10, [(0, 10)] * 5)])
def test_with_drafts_and_alone_each_part_is_written_in_turn(tokens, parts):
    """A short answer is written several times, and an interrupted one says nothing."""
    calls = []

    def write(start, settings):
        calls.append((settings.drafter, (start, settings.max_tokens)))
        return SimpleNamespace(reason="length", tokens_per_s=30.0 if settings.drafter == "ngram" else 20.0)

    assert paired_speeds(write, [1] * tokens, Settings(drafter="ngram")) == [(30.0, 20.0)] * len(parts)
    order = ["ngram", "none", "none", "ngram"] * 3
    assert calls == list(zip(order, [part for part in parts for _ in range(2)], strict=False))
    ended = SimpleNamespace(reason="interrupted", tokens_per_s=20.0)
    assert paired_speeds(lambda *_: ended, [1] * tokens, Settings(drafter="ngram")) == []
