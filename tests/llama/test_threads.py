"""Threads that wait for each other are noticed within a few passes, and halved until they no longer would; a slow
machine is none.
"""

import pytest

from specdec_cli.llama.threads import ThreadWatch


class Context:
    """A context whose passes take as long as a test says, with a watch over its threads. told: what that reports."""

    def __init__(self, threads=2, expected=None, most=None):
        self.threads, self.length, self.on_pass, self.passes = threads, 0, None, self
        self.decoded, self.told = 0, []
        self.watch = ThreadWatch(self, expected or {}, self.told.append, most or threads)

    def set_threads(self, threads):
        self.threads = threads

    def decode(self, tokens):
        self.decoded += 1
        self.length += len(tokens)

    def rewind(self, length):
        self.length = length

    def laps(self, *laps, tokens=1):
        for seconds in laps:
            self.on_pass(tokens, seconds)


def test_slow_passes_halve_the_threads_and_faster_ones_keep_them_halved():
    context = Context(4, {1: 0.01})
    context.laps(0.01, 2.0, 1.0, 3.0)
    assert context.threads == 2 and context.told == [], "a trial begins"
    context.laps(0.02, 0.02, 0.02)
    assert context.threads == 2 and context.told == [2]
    context.laps(*[0.02] * 20)
    assert context.threads == 2, "with fewer all is well"
    context.laps(1.0, 1.0, 1.0, 0.03, 0.03, 0.03)
    assert context.threads == 1 and len(context.told) == 2
    context.laps(*[9.0] * 20)
    assert context.threads == 1 and len(context.told) == 2, "one is the least"


def test_on_a_quiet_machine_all_threads_come_back():
    """Also if the context was opened while it was busy."""
    context = Context(1, {1: 0.04}, most=3)
    context.laps(*[0.04] * 512)
    assert context.threads == 2 and context.told == [], "a trial begins"
    context.laps(*[0.02] * 3)
    assert context.told == [2]
    context.laps(*[0.02] * 509, *[0.014] * 3)
    assert context.threads == 3 and context.told == [2, 3]
    context.laps(*[0.014] * 9999)
    assert context.threads == 3, "no more than there were"


def test_while_it_stays_busy_more_threads_are_tried_ever_less_often():
    context, tries = Context(1, {1: 0.04}, most=2), []
    for lap in range(5000):
        before = context.threads
        context.laps(0.04 if before == 1 else 0.4)
        tries += [lap] * (context.threads > before)
    assert context.told == [] and context.threads == 1, "one slow pass ends a trial"
    assert tries == [511, 1535, 3583]


def test_bursts_of_other_programs_do_not_delay_a_trial_of_more_threads():
    context = Context(2, {1: 0.04}, most=4)
    for _ in range(20):
        context.laps(*[0.04] * 20, *[0.4] * 6)
    tried = [context.laps(0.04) or context.threads for _ in range(1000)]
    assert 4 in tried


def test_no_trial_changes_the_threads_where_passes_are_measured_or_must_agree():
    context = Context(1, {1: 0.04}, most=2)
    for end in (context.watch.stop, lambda: context.watch.try_fewer(7)):
        context.watch.on = True
        context.laps(*[0.04] * 512)
        assert context.threads == 2
        end()
        assert context.threads == 1
    context.watch.stop()
    context.laps(*[0.04] * 1000)
    assert context.threads == 1


def test_a_trial_that_is_no_faster_is_taken_back():
    """As where weights are read from a disk, or the whole machine has become slower."""
    context = Context(expected={1: 0.05})
    context.laps(0.65, 0.65, 0.65)
    assert context.threads == 1
    context.laps(0.6, 0.6, 0.6)
    assert context.threads == 2
    context.laps(*[0.6] * 20)
    assert context.threads == 2 and context.told == [], "now that is known to be how long they take"


@pytest.mark.parametrize(
    ("expected", "laps"),
    [
        (0.01, [0.03] * 50),
        (0.01, [0.01, 60.0, 0.01, 0.01]),
        (5e-4, [5e-4, 5e-3, 5e-3, 5e-3, 5e-3]),
        (0.028, [0.028 + 4e-6 * length for length in range(0, 64_000, 50)]),
    ],
    ids=["a slow machine", "stopped for a minute", "slow, but who would notice", "a growing context"],
)
def test_what_is_no_waiting(expected, laps):
    context = Context(expected={1: expected})
    for place, seconds in enumerate(laps):
        context.length = 50 * place if len(laps) > 1000 else 0
        context.laps(seconds)
    assert context.told == [] and context.threads == 2


@pytest.mark.parametrize("first", [(2.0, 32), (5.0, 1), (1.0, 8)], ids=["a prompt", "from a disk", "a draft"])
def test_a_slow_idle_machine_keeps_its_threads(first):
    """Passes of other widths, and one that reads the weights from a disk, say nothing about threads."""
    context = Context()
    seconds, tokens = first
    context.laps(seconds, tokens=tokens)
    context.laps(*[0.1] * 3)
    assert context.threads == 1, "a trial"
    context.laps(*[0.3] * 5, tokens=2)
    context.laps(0.9, tokens=32)
    context.laps(*[0.2] * 3)
    assert context.threads == 2 and context.told == []


def test_a_trial_without_passes_to_compare_ends():
    context = Context()
    context.laps(*[0.1] * 3)
    assert context.threads == 1
    context.laps(*[0.3] * 32, tokens=2)
    assert context.threads == 2 and context.told == []


def test_passes_over_several_tokens_start_no_trial():
    context = Context()
    context.laps(*[0.3] * 5, tokens=4)
    context.laps(0.1)
    assert context.threads == 2


def test_long_prompts_and_other_sizes_are_apart():
    context = Context(expected={1: 0.01, 8: 0.05})
    for _ in range(10):
        context.laps(9.0, tokens=512)
        context.laps(0.05, tokens=8)
    assert context.told == []


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
    context.watch.try_fewer(7)
    assert context.threads == threads and context.length == 0 and context.passes.on_pass is not None
    assert context.told == ([1] if threads == 1 else [])
    context.set_threads(2)
    context.watch.try_fewer(7)
    assert context.threads == 2, "once is enough"


def test_threads_are_as_before_if_a_pass_fails(monkeypatch):
    laps = iter([1.0])
    monkeypatch.setattr("specdec_cli.llama.threads.single_pass_s", lambda *_: next(laps))
    context = Context()
    with pytest.raises(StopIteration):
        context.watch.try_fewer(7)
    assert context.threads == 2 and context.passes.on_pass is not None
