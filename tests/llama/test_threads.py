"""Threads that wait for each other are noticed within a few passes, and halved until they no longer would; a slow
machine is none.
"""

import pytest

from specdec_cli.llama.threads import ThreadTuner


class Context:
    """A context whose passes take as long as a test says, with a tuner of its threads. told: what that reports."""

    def __init__(self, threads=2, expected=None, most=None):
        self.threads, self.length, self.on_pass, self.passes, self.told = threads, 0, None, self, []
        self.tuner = ThreadTuner(self, expected or {}, self.told.append, most or threads)

    def set_threads(self, threads):
        self.threads = threads

    def decode(self, tokens):
        self.length += len(tokens)

    def rewind(self, length):
        self.length = length

    def measure(self, laps):
        for seconds, tokens in laps:
            self.on_pass(tokens, seconds)


def laps(seconds, count=1, tokens=1):
    """Passes over so many tokens."""
    return [(seconds, tokens)] * count


SCENARIOS = {
    "slow passes halve the threads until one is left": (
        {"threads": 4, "expected": {1: 0.01}},
        [
            (laps(0.01) + laps(2.0, 3), 2, []),  # a trial begins
            (laps(0.02, 3), 2, [2]),
            (laps(0.02, 20), 2, [2]),
            (laps(1.0, 3) + laps(0.03, 3), 1, [2, 1]),
            (laps(9.0, 20), 1, [2, 1]),
        ],
    ),
    "on a quiet machine all threads come back": (  # also if the context was opened while it was busy
        {"threads": 1, "expected": {1: 0.04}, "most": 3},
        [
            (laps(0.04, 512), 2, []),
            (laps(0.02, 3), 2, [2]),
            (laps(0.02, 509) + laps(0.014, 3), 3, [2, 3]),
            (laps(0.014, 9999), 3, [2, 3]),
        ],
    ),
    "a trial that is no faster is taken back": (  # as where the whole machine has become slower, which is known then
        {"expected": {1: 0.05}},
        [(laps(0.65, 3), 1, []), (laps(0.6, 3), 2, []), (laps(0.6, 20), 2, [])],
    ),
    "a slow machine": ({"expected": {1: 0.01}}, [(laps(0.03, 50), 2, [])]),
    "stopped for a minute": ({"expected": {1: 0.01}}, [(laps(0.01) + laps(60.0) + laps(0.01, 2), 2, [])]),
    "slow, but who would notice": ({"expected": {1: 5e-4}}, [(laps(5e-4) + laps(5e-3, 4), 2, [])]),
    "long prompts": (
        {"expected": {8: 0.05}},
        [(laps(0.5, tokens=99) + (laps(9.0, tokens=99) + laps(0.05, tokens=8)) * 3, 2, [])],
    ),
    "drafts start no trial": ({}, [(laps(0.3, 5, tokens=4) + laps(0.1), 2, [])]),
    "a trial with nothing to compare ends": ({}, [(laps(0.1, 3), 1, []), (laps(0.3, 32, tokens=2), 2, [])]),
    **{
        # Passes of other widths, and one that reads the weights from a disk, say nothing about threads.
        f"a slow idle machine, at first {name}": (
            {},
            [(first + laps(0.1, 3), 1, []), (laps(0.3, 5, tokens=2) + laps(0.9, tokens=32) + laps(0.2, 3), 2, [])],
        )
        for name, first in (
            ("a prompt", laps(2.0, tokens=32)),
            ("from a disk", laps(5.0)),
            ("a draft", laps(1.0, tokens=8)),
        )
    },
}


@pytest.mark.parametrize(("settings", "steps"), SCENARIOS.values(), ids=SCENARIOS)
def test_threads_follow_what_passes_take(settings, steps):
    context = Context(**settings)
    for took, threads, told in steps:
        context.measure(took)
        assert (context.threads, context.told) == (threads, told)


def test_while_it_stays_busy_more_threads_are_tried_ever_less_often():
    context, tries = Context(1, {1: 0.04}, most=2), []
    for lap in range(5000):
        before = context.threads
        context.measure(laps(0.04 if before == 1 else 0.4))
        tries += [lap] * (context.threads > before)
    assert context.told == [] and context.threads == 1, "one slow pass ends a trial"
    assert tries == [511, 1535, 3583]


def test_bursts_of_other_programs_do_not_delay_a_trial_of_more_threads():
    context = Context(2, {1: 0.04}, most=4)
    for _ in range(20):
        context.measure(laps(0.04, 20) + laps(0.4, 6))
    tried = [context.measure(laps(0.04)) or context.threads for _ in range(1000)]
    assert 4 in tried


def test_no_trial_changes_the_threads_where_passes_are_measured_or_must_agree():
    context = Context(1, {1: 0.04}, most=2)
    for end in (context.tuner.stop, lambda: context.tuner.try_fewer(7)):
        context.tuner.on = True
        context.measure(laps(0.04, 512))
        assert context.threads == 2
        end()
        assert context.threads == 1
    context.tuner.stop()
    context.measure(laps(0.04, 1000))
    assert context.threads == 1


def test_a_growing_context_is_no_waiting():
    context = Context(expected={1: 0.028})
    for length in range(0, 64_000, 50):
        context.length = length
        context.measure(laps(0.028 + 4e-6 * length))
    assert context.told == [] and context.threads == 2


@pytest.mark.parametrize(
    ("long", "short", "threads"), [(1.0, 0.1, 1), (0.1, 0.09, 2), (0.01, 0.001, 2)], ids=["waits", "slow", "quick"]
)
def test_before_anything_is_known_half_the_threads_are_tried(monkeypatch, long, short, threads):
    clock = [0.0]

    class Clocked(Context):
        def decode(self, tokens):
            super().decode(tokens)
            clock[0] += long if self.threads == 2 else short

    context = Clocked()
    monkeypatch.setattr("specdec_cli.llama.pass_probes.perf_counter", lambda: clock[0])
    context.tuner.try_fewer(7)
    assert context.threads == threads and context.length == 0 and context.passes.on_pass is not None
    assert context.told == ([1] if threads == 1 else [])
    context.set_threads(2)
    context.tuner.try_fewer(7)
    assert context.threads == 2, "once is enough"


def test_threads_are_as_before_if_a_pass_fails(monkeypatch):
    took = iter([1.0])
    monkeypatch.setattr("specdec_cli.llama.threads.single_pass_s", lambda *_: next(took))
    context = Context()
    with pytest.raises(StopIteration):
        context.tuner.try_fewer(7)
    assert context.threads == 2 and context.passes.on_pass is not None
