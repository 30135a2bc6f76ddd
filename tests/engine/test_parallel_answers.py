"""Lists of prompts: each gets its own answer, and none is in another's way."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from specdec_cli import SamplingParams, SpecdecError, SpeculativeConfig
from specdec_cli import load as load_engine
from specdec_cli.decoding.rules import RULES
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.engine.scheduler import Scheduler

PROMPTS = [[*range(5, 5 + size)] * 4 for size in (3, 4, 5, 6, 7)]


@pytest.fixture
def engine(load):
    """A model that repeats what it reads, so that rounding changes nothing."""
    how = SpeculativeConfig(drafter="ngram", draft_tokens=3)
    with load_engine(target=load("glm4moe-echo").path, threads=1, speculative=how) as engine:
        yield engine


@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_a_list_is_answered_in_order_as_one_by_one(engine, parallel):
    sampling = SamplingParams(max_tokens=30)
    alone = [engine.generate(prompt, sampling) for prompt in PROMPTS]
    for _ in range(2):  # the second time in the same sessions
        found = engine.generate(PROMPTS, sampling, parallel=parallel)
        assert [each.tokens for each in found] == [own.tokens for own in alone]
        assert [each.prompt for each in found] == PROMPTS
    assert len({tuple(own.tokens) for own in alone}) == len(PROMPTS)
    assert sum(each.metrics.accepted for each in found) > 20


def test_answers_that_share_passes_have_no_speed_of_the_target_alone(load, monkeypatch):
    taken = []
    monkeypatch.setattr(GenerationResult, "take_probed_baseline", lambda self, _: taken.append(self))
    with load_engine(target=load("glm4moe-echo").path, threads=1) as engine:
        engine.generate(PROMPTS[:2], SamplingParams(max_tokens=8))
        assert not taken
        assert engine.generate(PROMPTS[0], SamplingParams(max_tokens=8)) in taken


def test_one_that_fails_has_its_error_and_the_others_go_on(engine):
    sampling = SamplingParams(max_tokens=8)
    long = [5] * 200_000
    found = engine.generate([PROMPTS[0], [], long, PROMPTS[1]], sampling)
    assert [each.error is None for each in found] == [True, False, False, True]
    assert "200,000 tokens" in str(found[2].error) and found[1].text == ""
    assert found[3].tokens == engine.generate(PROMPTS[1], sampling).tokens
    assert all(each.error for each in engine.generate([[], []], sampling))


def test_closing_the_engine_ends_a_list(engine):
    seen, sampling = threading.Event(), SamplingParams(max_tokens=1500)

    def rule(*given):
        assert seen.wait(30)
        return RULES["match"](*given)

    with ThreadPoolExecutor(1) as pool:
        how = SpeculativeConfig(accept=rule)
        answering = pool.submit(engine.generate, PROMPTS, sampling, how, parallel=1)
        while not ((own := engine._parallel._scheduler) and own.jobs and len(own.waiting) == 4):
            assert not answering.done()
            sleep(0.001)
        seen.set()
        engine.close()
        found = answering.result(30)
    assert len(found) == len(PROMPTS) and all("the engine was closed" in str(result.error) for result in found)
    with pytest.raises(SpecdecError, match="the engine was closed"):
        engine.generate([[1, 2, 3]])


@pytest.mark.parametrize("act", [lambda engine: engine.close(), lambda engine: engine.generate(PROMPTS)])
def test_a_step_of_a_list_neither_closes_the_engine_nor_waits_for_a_list(engine, act):
    found = engine.generate(PROMPTS[:2], speculative=SpeculativeConfig(accept=lambda *_: act(engine)))
    assert all("while it computes" in str(each.error) for each in found)
    assert engine.generate(PROMPTS[:2], SamplingParams(max_tokens=3))[1].complete


def test_nor_does_a_step_close_the_engine_while_ctrl_c_ends_the_list(engine, monkeypatch):
    closing, close, refused = threading.Event(), Scheduler.close, []
    monkeypatch.setattr(Scheduler, "close", lambda scheduler: [closing.set(), close(scheduler)])

    def rule(*_):
        if not closing.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert closing.wait(30)
            with pytest.raises(SpecdecError, match="while it computes"):
                engine.close()
            refused.append(True)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[:2], speculative=SpeculativeConfig(accept=rule))
    assert refused and engine.generate(PROMPTS[:2], SamplingParams(max_tokens=3))[1].complete


def test_a_long_text_does_not_enlarge_the_contexts_of_more_sessions(engine):
    for prompts, large in (([[5] * 1000], True), (PROMPTS[:1], True), (PROMPTS, False)):
        engine.generate(prompts, SamplingParams(max_tokens=2))
        assert (engine._parallel._scheduler.n_ctx > 1000) is large


@pytest.mark.slow
def test_ctrl_c_ends_a_list_and_the_engine_goes_on(engine, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def interrupt(*_):
            patch.undo()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        patch.setattr(GenerationResult, "add", interrupt)
        engine.generate([[5, 6, 7]] * 4, SamplingParams(max_tokens=100_000), parallel=2)
    assert len(engine.generate(PROMPTS[:2], SamplingParams(max_tokens=3))) == 2
