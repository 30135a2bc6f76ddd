"""Threads that wait for each other are noticed within a few passes, and halved; a slow machine is none."""

import pytest

from specdec_cli.llama.threads import ThreadWatch


class Context:
    """A context whose passes take as long as a test says."""

    def __init__(self, threads):
        self.threads, self.length, self.on_pass = threads, 0, None
        self.passes = []

    def set_threads(self, threads):
        self.threads = threads

    def decode(self, tokens):
        self.passes.append(self.threads)
        self.length += len(tokens)

    def rewind(self, length):
        self.length = length


@pytest.fixture
def told():
    return []


def watched(threads, told, expected=None):
    context = Context(threads)
    ThreadWatch(context, expected or {}, lambda now, times: told.append((now, round(times))))
    return context


def passes(context, *laps, tokens=1):
    for seconds in laps:
        context.on_pass(tokens, seconds)


def test_slow_passes_halve_the_threads_and_faster_ones_keep_them_halved(told):
    context = watched(4, told, {1: 0.01})
    passes(context, 0.01, 2.0, 1.0, 3.0)
    assert context.threads == 2 and told == [], "a trial begins"
    passes(context, 0.02, 0.02, 0.02)
    assert context.threads == 2 and told == [(2, 150)]
    passes(context, *[0.02] * 20)
    assert context.threads == 2, "with fewer all is well"
    passes(context, 1.0, 1.0, 1.0, 0.03, 0.03, 0.03)
    assert context.threads == 1 and len(told) == 2
    passes(context, *[9.0] * 20)
    assert context.threads == 1 and len(told) == 2, "one is the least"


def test_a_trial_that_is_no_faster_is_taken_back(told):
    """As where weights are read from a disk, or the whole machine has become slower."""
    context = watched(2, told, {1: 0.05})
    passes(context, 0.65, 0.65, 0.65)
    assert context.threads == 1
    passes(context, 0.6, 0.6, 0.6)
    assert context.threads == 2 and told == []
    passes(context, *[0.6] * 20)
    assert context.threads == 2, "now that is known to be how long they take"


def test_without_knowledge_the_shortest_pass_counts(told):
    context = watched(2, told)
    passes(context, 1.0, 0.02, 1.1, 0.02, 0.9)
    assert context.threads == 2
    passes(context, 1.0, 0.02, 0.02, 0.02)
    assert context.threads == 1 and len(told) == 1


def test_without_knowledge_long_passes_ask_for_a_trial_once(told):
    waiting = watched(2, told)
    passes(waiting, 0.5, 0.5, 0.5, 0.015, 0.015, 0.015)
    assert waiting.threads == 1 and told == [(1, 33)]
    large = watched(2, told)
    passes(large, 0.3, 0.3, 0.3, 0.55, 0.55, 0.55)
    assert large.threads == 2
    passes(large, *[0.3] * 30)
    assert large.threads == 2 and len(told) == 1


@pytest.mark.parametrize(
    "laps",
    [
        [0.03] * 50,  # three times as slow: the machine is
        [0.01, 60.0, 0.01, 0.01],  # stopped for a minute
        [0.01, 0.0101] * 30,
        [5e-4, 5e-3, 5e-3, 5e-3, 5e-3],  # slow, but who would notice
    ],
)
def test_what_is_no_waiting(told, laps):
    context = watched(2, told, {1: 0.01 if laps[0] > 1e-3 else 5e-4})
    passes(context, *laps)
    assert told == [] and context.threads == 2


def test_a_growing_context_is_no_waiting(told):
    context = watched(2, told, {1: 0.028})
    for length in range(0, 64_000, 50):
        context.length = length
        passes(context, 0.028 + 4e-6 * length)
    assert told == [] and context.threads == 2


def test_long_prompts_and_other_sizes_are_apart(told):
    context = watched(2, told, {1: 0.01, 8: 0.05})
    for _ in range(10):
        passes(context, 9.0, tokens=512)
        passes(context, 0.05, tokens=8)
    assert told == []


@pytest.mark.parametrize(
    ("long", "short", "threads"), [(1.0, 0.1, 1), (0.1, 0.09, 2), (0.01, 0.001, 2)], ids=["waits", "slow", "quick"]
)
def test_before_anything_is_known_half_the_threads_are_tried(monkeypatch, told, long, short, threads):
    clock = [0.0]
    context = Context(2)

    def decode(tokens):
        clock[0] += long if context.threads == 2 else short
        context.length += len(tokens)

    context.decode = decode
    monkeypatch.setattr("specdec_cli.llama.timing.perf_counter", lambda: clock[0])
    watch = ThreadWatch(context, {}, lambda now, times: told.append(now))
    watch.try_fewer(7)
    assert context.threads == threads and context.length == 0 and context.on_pass is not None
    assert told == ([1] if threads == 1 else [])
    context.set_threads(2)
    watch.try_fewer(7)
    assert context.threads == 2, "once is enough"


def test_what_is_known_is_not_tried(told):
    context = Context(2)
    ThreadWatch(context, {1: 0.01}, lambda now, times: told.append(now)).try_fewer(7)
    assert context.passes == [] and told == []


def test_off_it_changes_nothing(told):
    context = Context(2)
    watch = ThreadWatch(context, {}, lambda now, times: told.append(now))
    watch.on = False
    passes(context, 0.01, *[9.0] * 20)
    watch.try_fewer(7)
    assert context.threads == 2 and context.passes == [] and told == []
