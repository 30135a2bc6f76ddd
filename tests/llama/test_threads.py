"""Threads that wait for each other are noticed within a few passes, and halved; a slow machine is none."""

import pytest

from specdec_cli.llama.threads import ThreadWatch


class Context:
    """A context whose passes take as long as `seconds` says of the number of threads."""

    def __init__(self, threads, seconds=lambda threads: 0.0):
        self.threads, self.length, self.on_pass, self._seconds = threads, 0, None, seconds
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


def test_slow_passes_halve_the_threads_once_each_time(told):
    context = watched(4, told, {1: 0.01})
    for seconds in (0.01, 2.0, 1.0, 3.0):
        context.on_pass(1, seconds)
    assert told == [(2, 200)] and context.threads == 2
    for _ in range(20):
        context.on_pass(1, 0.02)
    assert context.threads == 2, "with fewer all is well"
    for _ in range(3):
        context.on_pass(1, 1.0)
    assert told == [(2, 200), (1, 50)] and context.threads == 1
    for _ in range(9):
        context.on_pass(1, 9.0)
    assert len(told) == 2, "one is the least"


def test_without_knowledge_the_shortest_pass_counts(told):
    context = watched(2, told)
    for seconds in (1.0, 0.02, 1.1, 0.02, 0.9):
        context.on_pass(1, seconds)
    assert told == []
    context.on_pass(1, 1.0)
    assert told == [(1, 50)]


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
    for seconds in laps:
        context.on_pass(1, seconds)
    assert told == [] and context.threads == 2


def test_long_prompts_and_other_sizes_are_apart(told):
    context = watched(2, told, {1: 0.01, 8: 0.05})
    for _ in range(10):
        context.on_pass(512, 9.0)
        context.on_pass(8, 0.05)
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
    monkeypatch.setattr("specdec_cli.llama.threads.perf_counter", lambda: clock[0])
    ThreadWatch(context, {}, lambda now, times: told.append(now)).try_fewer(7)
    assert context.threads == threads and context.length == 0
    assert told == ([1] if threads == 1 else [])


def test_what_is_known_is_not_tried(told):
    context = Context(2)
    ThreadWatch(context, {1: 0.01}, lambda now, times: told.append(now)).try_fewer(7)
    assert context.passes == [] and told == []
