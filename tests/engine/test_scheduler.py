"""Several answers at once: what they say is what each would have said alone, and none is in another's way."""

import threading
from collections import defaultdict
from contextlib import closing, contextmanager

import numpy as np
import pytest
from engines import open_session, wrapped_rule
from faulty_drafters import raising

from specdec_cli import SamplingParams, SpeculativeConfig
from specdec_cli import load as load_engine
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.scheduler import QueueFull, Scheduler
from specdec_cli.engine.slots import Slots
from specdec_cli.llama import shared_context
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.passes import N_BATCH
from specdec_cli.llama.shared_context import SharedContext
from specdec_cli.weights.pass_costs import PassCosts, SavedCosts

PROMPTS = (
    "def median(values):\n    return",
    "class Stack:\n    def push(self, item):\n",
    "import os\n\ndef walk(folder):\n",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n",
)
WAYS = (
    (SamplingParams(max_tokens=40), SpeculativeConfig(draft_tokens=3)),
    (SamplingParams(max_tokens=60), SpeculativeConfig(drafter="ngram")),
    (SamplingParams(max_tokens=30, temperature=0.8, seed=7), SpeculativeConfig(drafter="none")),
    (SamplingParams(max_tokens=50, temperature=1.0, seed=3), SpeculativeConfig(draft_tokens=5, accept="coupled")),
    (SamplingParams(max_tokens=45), SpeculativeConfig()),
)


class Noted(list):
    """The rows by which the tokens of an answer were chosen."""

    def noting(self, rule):
        def judge(draft, rows, sampler, rng):
            verdict = rule(draft, rows, sampler, rng)
            self.extend(np.array(rows[node + 1]) for node in (-1, *verdict.path))
            return verdict

        return judge


class Answers:
    """Jobs that write answers, and what came of them, by number."""

    def __init__(self, scheduler):
        self.scheduler, self.results, self.ended = scheduler, {}, threading.Semaphore(0)
        self.noted = defaultdict(Noted)

    def ask(self, prompt, sampling=None, speculative=None, number=None, each=lambda event: None):
        number = len(self.noted) if number is None else number
        noting = self.noted[number].noting

        def work(session):
            try:
                answer = session.start(prompt, sampling, speculative, raw=True)
                self.results[number] = answer.result
                with wrapped_rule(session, noting):
                    for event in answer:
                        each(event)
            except SpecdecError as error:
                self.results[number] = error
            finally:
                self.ended.release()

        session = self.scheduler.slots.sessions[0]
        return self.scheduler.submit(prompt if isinstance(prompt, list) else session.tokenize(prompt, raw=True), work)

    def begin(self, tokens, number=None):
        """A job whose answer has begun."""
        begun, sampling = threading.Event(), SamplingParams(max_tokens=tokens)
        job = self.ask("x", sampling, SpeculativeConfig(drafter="none"), number, each=lambda _: begun.set())
        assert begun.wait(30)
        return job

    def wait(self, count):
        for _ in range(count):
            assert self.ended.acquire(timeout=60)


@contextmanager
def answers(count, n_ctx=512, most_waiting=64, **settings):
    with open_session(**settings) as session, Scheduler(session.weights, count, n_ctx, most_waiting) as scheduler:
        yield Answers(scheduler)


@pytest.fixture(scope="module")
def alone():
    """What each prompt is answered in each way by a session of its own, and the rows."""
    answered = {}
    with open_session() as session:
        for text in PROMPTS:
            for number, way in enumerate(WAYS):
                noted = Noted()
                answer = session.start(text, *way, raw=True)
                with wrapped_rule(session, noted.noting):
                    assert [*answer]
                answered[text, number] = answer.result, noted
    return answered


def rounding(load, tokens):
    """How far a logit of the row after some tokens varies with where they lie in a cache that other texts share: there
    the same numbers are added in another order.
    """
    rows, chance = [], np.random.default_rng(0)
    for _ in range(8):
        shared = SharedContext(load("target"), 512, 17, 1, Interrupt(), [Interrupt(), Interrupt()])
        text, other = shared.texts
        with closing(shared):
            for start in range(0, len(tokens), 2):
                if chance.random() < 0.7:
                    other.decode([5] * int(chance.integers(1, 8)))
                if chance.random() < 0.6:
                    other.rewind(int(chance.integers(0, other.length + 1)))
                row = text.decode(tokens[start : start + 2])[-1]
            rows.append(np.array(row))
    return np.ptp(rows, axis=0).max()


@pytest.mark.parametrize("count", [4, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 2, 8))])
def test_answers_over_slots_are_those_of_an_engine_alone(alone, load, count):
    """To the token; or the rows at the first other token differ by no more than rounding."""
    order = sorted(alone, key=lambda case: hash((count, PROMPTS.index(case[0]), case[1])))
    with answers(count) as some:
        for text, way in order:
            some.ask(text, *WAYS[way])
        some.wait(len(order))
    for number, case in enumerate(order):
        got, (expected, rows) = some.results[number], alone[case]
        pairs = enumerate(zip(got.tokens, expected.tokens, strict=False))
        if (at := next((i for i, (mine, own) in pairs if mine != own), None)) is not None:
            differs = np.abs(some.noted[number][at] - rows[at]).max()
            noise = rounding(load, [*expected.prompt, *expected.tokens[:at]])
            assert 0 < differs <= 2 * noise, f"{case}: other tokens from {at} on, {differs} against {noise}"
        else:
            assert got.tokens == expected.tokens


def test_what_answers_have_learned_together_is_kept():
    """The second start begins with half of it, whichever slot is closed last."""
    looks = []
    for _ in range(2):
        with answers(2, draft_tokens="auto") as some:
            for session in some.scheduler.slots.sessions:
                session.drafting.policy(session.settings, [1])
            (shared,) = some.scheduler._load.calibrations.values()
            for _ in range(100):
                shared.observe_confidence(3)
        (kept,) = session.drafting.learning._load().values()
        looks.append(kept.calibration.looks)
    assert looks == [100, 150]


def test_slots_draft_on_where_a_text_is_longer_than_a_draft_models_window():
    """What stays is read again there: the cells are not one text's own."""
    how = SpeculativeConfig(draft_tokens=3, drafter="model")
    with answers(2, draft_window=64) as some:
        for prompt in PROMPTS[:2]:
            some.ask(prompt * 4, SamplingParams(max_tokens=100), how)
        some.wait(2)
    for result in some.results.values():
        assert result.metrics.accepted > 20 and len(result.tokens) == 100
        assert not [note for note in result.notes if "failed" in note]


def test_heads_draft_in_slots(load):
    """Each slot has a context of its own for them, and the hidden rows of its part of a shared pass."""
    model, prompts = load("glm4moe-echo").path, [[*range(5, 5 + size)] * 4 for size in (3, 4, 5)]
    sampling, how = SamplingParams(max_tokens=30), SpeculativeConfig(drafter="mtp", draft_tokens=3)
    with answers(2, target=str(model), draft=None, drafter="mtp", draft_tokens=3) as some:
        for prompt in prompts:
            some.ask(prompt, sampling)
        some.wait(len(prompts))
    with load_engine(target=model, threads=1, speculative=how) as session:
        alone = [session.generate(prompt, sampling) for prompt in prompts]
    for number, own in enumerate(alone):
        assert some.results[number].tokens == own.tokens
        assert some.results[number].metrics.accepted == own.metrics.accepted > 5


def test_what_another_slot_has_read_is_not_read_again():
    shared = "# " + "a long beginning that all requests share " * 8
    with answers(4) as some:
        some.ask(f"{shared}one", SamplingParams(max_tokens=4))
        some.wait(1)
        for end in ("two", "three", "four", "five", "six"):
            some.ask(f"{shared}{end}", SamplingParams(max_tokens=30))
        some.wait(5)
    first, *rest = some.results.values()
    assert first.cached_tokens == 0
    assert all(result.cached_tokens > 0.9 * len(result.prompt) for result in rest)


def test_a_beginning_is_read_once_though_its_prompts_come_together():
    with answers(4) as some:
        for number in range(4):
            some.ask([*range(5, 305), 400 + number, 6, 7], SamplingParams(max_tokens=4))
        some.wait(4)
    first, *rest = sorted(result.cached_tokens for result in some.results.values())
    assert first == 0 and all(170 < cached <= 300 for cached in rest)


def test_a_copied_prompt_has_its_hidden_rows(load):
    """With which heads draft as they do where the prompt was read."""
    model, prompt = load("glm4moe-echo").path, [*range(5, 45)] * 4
    with answers(2, target=str(model), draft=None, drafter="mtp", draft_tokens=3) as some:
        for _ in range(2):
            some.ask(prompt, SamplingParams(max_tokens=30))
        some.wait(2)
        texts = [session.models.target.open_kv for session in some.scheduler.slots.sessions]
        known = [text.hidden.before(0, len(prompt)) for text in texts]
    assert np.abs(known[0] - known[1]).max() < 1e-3 and known[0][1:].any(axis=1).all()
    first, second = some.results.values()
    assert (first.cached_tokens, second.cached_tokens) == (0, len(prompt) - 1)
    assert first.metrics.accepted == second.metrics.accepted > 5


@pytest.mark.parametrize("shared", [4, 30])
def test_conversations_keep_their_slots(shared):
    """Though all begin alike, even with most of their text."""
    begin, grown = "# " + "a beginning that all share " * shared, {}
    with answers(4, n_ctx=2048) as some:
        for turn in range(3):
            for talk in "ab":
                grown[talk] = grown.get(talk, begin) + f" {talk} says {turn} " * 10
                some.ask(grown[talk], SamplingParams(max_tokens=4), number=(talk, turn))
                some.wait(1)
    for (_, turn), result in some.results.items():
        assert not turn or result.cached_tokens > len(result.prompt) - 60


def test_idle_slots_hold_no_more_than_one_may():
    with answers(2) as some:
        some.scheduler.slots.sessions[0].models.draft.close()  # as after an error
        for number in range(3):
            job = some.ask([400 + number, *range(5, 400)], SamplingParams(max_tokens=3))
            assert job.ended.wait(60)
        held = [session.models.target.open_kv.length for session in some.scheduler.slots.sessions]
    assert sum(held) <= 512 and max(held) > 390


def test_idle_slots_that_share_a_beginning_keep_it():
    """It's in the same cells for all, so 3 x 332 tokens are 396."""
    with answers(4) as some:
        for number in range(3):
            assert some.ask([*range(5, 305), *[400 + number] * 30], SamplingParams(max_tokens=3)).ended.wait(60)
        held = sorted(session.models.target.open_kv.length for session in some.scheduler.slots.sessions)
    assert held == [0, 332, 332, 332]


def test_a_cpu_reads_prompts_and_continues_answers_in_turn(monkeypatch):
    widths, read = [], SharedContext.read_together

    def noted(shared, chunks):
        widths.append(sorted(len(chunk.tokens) for chunk in chunks))
        return read(shared, chunks)

    monkeypatch.setattr(SharedContext, "read_together", noted)
    with answers(2, n_ctx=2048) as some:
        some.begin(1900)
        widths.clear()
        some.ask([5, 6, 7] * 185, SamplingParams(max_tokens=1), SpeculativeConfig(drafter="none"))
        some.wait(1)
        some.scheduler.close()
    first = widths.index([256])
    assert widths[first : first + 4] == [[256], [1], [256], [1, 43]], "so few are cheap together"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 64])
def test_a_prompt_is_read_while_others_write(monkeypatch, count):
    """As on a GPU, where a pass takes all that there is room for."""
    monkeypatch.setattr(shared_context, "_CPU_READS", N_BATCH)
    with answers(count, n_ctx=2048) as some:
        written = []
        some.begin(1900, "long")
        some.ask(
            [5, 6, 7] * 500,
            SamplingParams(max_tokens=1),
            number="read",
            each=lambda _: written.append(some.results["long"].metrics.emitted),
        )
        some.wait(2)
    assert written[0] < 1900 / 2


def test_fewer_threads_measure_nothing_while_answers_run(monkeypatch):
    """That would overwrite the text of the first slot."""
    with answers(2, threads=None) as some:
        costs, timed = some.scheduler.slots.sessions[0].models.target.open_costs, []
        monkeypatch.setattr(PassCosts, "_load", lambda _: SavedCosts())
        monkeypatch.setattr(PassCosts, "_timed", lambda *_: timed.append(1) or {1: 0.01})
        costs.thread_tuner._tell(1)
        some.ask(PROMPTS[0], SamplingParams(max_tokens=4))
        some.wait(1)
    assert some.results[0].complete and timed == []


def test_a_job_that_is_cancelled_frees_its_slot_within_a_pass():
    with answers(1, n_ctx=2048) as some:
        job = some.begin(1900)
        some.scheduler.cancel(some.ask("never", number="never"))
        some.scheduler.cancel(job)
        some.wait(1)
        some.ask("y", SamplingParams(max_tokens=5), number="next")
        some.wait(1)
    assert some.results[0].finish_reason == "interrupted" and not some.results[0].complete
    assert some.results["next"].complete and "never" not in some.results


def test_what_fails_costs_one_answer():
    with answers(3, n_ctx=256) as some:
        assert some.scheduler.submit([5], raising(SystemExit)).ended.wait(30)
        some.ask([5] * 600, number="too long")
        some.ask("x", speculative=SpeculativeConfig(tree=4), number="a tree")
        some.ask("x", SamplingParams(max_tokens=600), number="until it is full")
        some.ask("def f", SamplingParams(max_tokens=20), number="good")
        some.wait(4)
    assert "600 tokens" in str(some.results["too long"]) and isinstance(some.results["a tree"], UsageError)
    assert some.results["until it is full"].finish_reason in ("context", "stop")
    assert some.results["good"].complete


def test_closing_ends_what_runs_even_on_ctrl_c(monkeypatch):
    with answers(2, n_ctx=2048) as some:
        some.begin(2000)
        thread = some.scheduler._thread

        def interrupted():
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            some.scheduler.close()
        assert not thread.is_alive()
        assert some.results[0].finish_reason == "interrupted"
        with pytest.raises(QueueFull):
            some.ask("y")


@pytest.mark.parametrize("setting", [{"tree": 4}, {"drafter": "lookahead"}, {"bitwise": True}])
def test_slots_refuse_what_they_cannot_do(setting):
    with open_session(**setting) as session, pytest.raises(UsageError):
        Scheduler(session.weights, 2, 256)


def test_slots_that_fail_to_open_free_their_contexts(monkeypatch):
    closed, close = [], SharedContext.close
    monkeypatch.setattr(SharedContext, "close", lambda shared: closed.append(shared) or close(shared))
    monkeypatch.setattr(Slots, "_measured", raising(KeyboardInterrupt))
    with open_session() as session, pytest.raises(KeyboardInterrupt):
        Scheduler(session.weights, 2, 256)
    assert len(closed) == 2
