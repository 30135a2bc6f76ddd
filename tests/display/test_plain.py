"""Plain output, the trace and the report of one scripted run, and the settings in one line above it."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from fakes import Counting, FakeTarget, ScriptedDrafter, run
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.metrics import Metrics, ModelMemory
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Done, Step, Token
from specdec_cli.display.live import PlainDisplay
from specdec_cli.display.run_report import RunRecord, run_details, run_report
from specdec_cli.display.terminal import SafeConsole, SafeStream
from specdec_cli.engine.baseline import BaselineResult, where_drafting_does_not_pay
from specdec_cli.engine.config import Settings
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.measure import hardware
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.traces import TraceFile


def scripted_events():
    return run(FakeTarget(Counting()), drafter=ScriptedDrafter([(3, 4, 99), (99,), (7, 8), ()]), max_tokens=9)


def plain(events, on=lambda out: out, **options):
    out = StringIO()
    display = PlainDisplay(on(out), **options)
    for event in events:
        display.show(event)
    return out.getvalue()


def test_plain_is_the_answer_and_a_line_break_and_colours_may_be_added(snapshot):
    assert plain(scripted_events()) == "2 3 4 5 6 7 8 9 10 \n"
    snapshot("plain_coloured.txt", plain(scripted_events(), coloured=True))


def test_a_file_gets_the_text_as_it_is_and_a_terminal_does_not():
    step = Step(0, (Token(1, "a\x1b[31mb\n", "plain"),), (), 0, (), "", 0, 0, 0, 0)
    done = Done("stop", "\x1b[0m", (), 1)
    assert plain([step, done]) == "a\x1b[31mb\n\x1b[0m\n"
    assert plain([step, done], on=SafeStream) == "a␛[31mb\n␛[0m\n"


def test_trace(snapshot, tmp_path):
    trace = TraceFile(tmp_path / "run.jsonl", {"target": "t.gguf"})
    for event in scripted_events():
        trace.show(event)
    trace.close()
    snapshot("trace.jsonl", re.sub(r', "(at|seconds|\w+_s)": [^,}]+', "", (tmp_path / "run.jsonl").read_text()))


def fixed_report():
    report = Metrics.of(scripted_events())
    report.prefill_s, report.ttft_s, report.draft_prefill_s, report.total_s = 0.125, 0.13, 0.02, 1.13
    report.draft_s, report.verify_s, report.sample_s = 0.2, 0.7, 0.05
    return report


SETTINGS = RecordedSettings("m/a.gguf", "m/b.gguf", draft_tokens=3, temperature=0.0)


def shown(metrics, *parts, **known):
    """The report, and what -v adds to it."""
    target = ModelMemory("target", 4_700_000_000, 3_100_000_000, 512_000_000, 330_000_000)
    memory = [target, ModelMemory("draft", 400_000_000, 0, 64_000_000, 90_000_000)]
    known = {"settings": SETTINGS, "unmeasured": GenerationResult(Settings(), 0, []).unmeasured, **known}
    run = RunRecord(metrics, load_s=2.5, measuring_s=0.35, memory=memory, machine=["2 threads"], **known)
    console = SafeConsole(file=StringIO(), width=110, _environ={})
    console.print(*(part(run) for part in parts or [run_report]), sep="\n")
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("none", None),
        ("identical", BaselineResult(4.0, True, speedup=Interval(2.0, 1.75, 2.25, 6))),
        ("tie", BaselineResult(16.0, False, Divergence(5, 4, 0.012, 0.03, "logits"))),
        ("sampled", BaselineResult(8.0, None)),
    ],
)
def test_report(name, baseline, snapshot):
    parts = [run_report, run_details] if name == "none" else [run_report]
    snapshot(f"report_{name}.txt", shown(fixed_report(), *parts, baseline=baseline))


@pytest.mark.parametrize(
    ("interval", "claim"),
    [
        (Interval(1.8, 1.5, 2.1, 6), "1.80x faster than the target alone (1.50 to 2.10), same text"),
        (Interval(0.8, 0.7, 0.9, 6), "slower than the target alone: 0.80x (0.70 to 0.90), same text"),
        (Interval(1.02, 0.95, 1.08, 6), "as fast as the target alone, same text"),
        (Interval(1.2, 0.9, 1.6, 6), "speedup unknown: the measurements differ too much, same text"),
        (Interval(0.93, 0.85, 0.997, 6), "speedup unknown: the measurements differ too much, same text"),
    ],
)
def test_only_what_the_interval_allows_is_claimed(interval, claim):
    assert shown(fixed_report(), baseline=BaselineResult(4.0, True, speedup=interval)).split("\n")[0] == claim
    probed = BaselineResult(4.0, None, probes=5, speedup=interval)
    assert shown(fixed_report(), baseline=probed).split("\n")[0] == claim.removesuffix(", same text")


@given(
    ratios=st.lists(st.floats(0.2, 5), max_size=12),
    alone=st.floats(0.5, 50),
    probes=st.integers(0, 9),
    drafts=st.booleans(),
)
def test_a_ratio_is_shown_only_for_drafts_and_with_an_interval_that_excludes_1(ratios, alone, probes, drafts):
    interval = geometric_interval(ratios)
    metrics = (
        fixed_report() if drafts else Metrics.of(run(FakeTarget(Counting()), drafter=ScriptedDrafter([]), max_tokens=9))
    )
    text = shown(metrics, baseline=BaselineResult(alone, None if probes else True, probes=probes, speedup=interval))
    shown_ratios = [float(found) for found in re.findall(r"(\d+\.\d\d)x", text)]
    if drafts and interval and interval.excludes_one:
        assert shown_ratios == [pytest.approx(interval.mean, abs=0.006)]
        bounds = [float(found) for found in re.findall(r"\((\d+\.\d\d) to (\d+\.\d\d)\)", text)[0]]
        assert bounds[0] > 1 or bounds[1] < 1
    else:
        assert not shown_ratios and "█" not in text.partition("drafts ")[0]
    bars = re.findall(r"([\d,.]+) tok/s ([█▏▎▍▌▋▊▉]+)", text)
    speeds = [float(speed.replace(",", "")) for speed, _ in bars]
    cells = [sum(" ▏▎▍▌▋▊▉█".index(cell) for cell in cells) for _, cells in bars]
    for speed, length in zip(speeds, cells, strict=True):
        assert length / max(cells) == pytest.approx(speed / max(speeds), abs=0.01)


def test_where_nothing_was_drafted_there_is_no_ratio_but_advice():
    metrics = Metrics.of(run(FakeTarget(Counting()), drafter=ScriptedDrafter([]), max_tokens=9))
    metrics.ttft_s, metrics.total_s = 0.13, 1.13
    alone = {"settings": replace(SETTINGS, drafter="none"), "baseline": BaselineResult(4.0, True)}
    assert shown(metrics, **alone).startswith("8.0 tokens/s, the target alone, same text\ntimes ")
    advice = where_drafting_does_not_pay(1.62, "model")
    text = shown(metrics, baseline=BaselineResult(4.0, True), advice=advice)
    assert text.startswith("Drafting does not pay here (2 tokens cost 1.6x one): the target ran alone. Try --drafter")
    assert "specdec tune --what-if rtx-4090\n  alone           8.0 tok/s\n" in text and "2.00x" not in text
    assert "(2 tokens cost 29.0x one: is the machine busy?)" in where_drafting_does_not_pay(29, "model")
    assert "cost" not in where_drafting_does_not_pay(None, "ngram") and "rtx-4090" in hardware.names()
