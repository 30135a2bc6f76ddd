"""Plain output and the report of one scripted run, and the settings in one line above it."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from claims import assert_in_proportion, cells, excludes_one, ratios_in
from fakes import Counting, FakeTarget, ScriptedDrafter, run
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Done, LengthReason, Step, Token
from specdec_cli.display.live import PlainDisplay
from specdec_cli.display.run_report import RunRecord, alone_line, run_details, run_report, turn_line
from specdec_cli.display.terminal import SafeConsole, SafeStream
from specdec_cli.engine.baseline import BaselineResult, why_nothing_was_drafted
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.gguf.memory import ModelMemory
from specdec_cli.measure import hardware
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.settings.settings import Settings


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


def test_no_bar_is_drawn_over_a_line_that_has_begun(monkeypatch):
    drawn = []
    monkeypatch.setattr("specdec_cli.display.live.write_over", drawn.append)
    monkeypatch.setattr("specdec_cli.display.terminal._SILENT_S", 0)
    display = PlainDisplay(StringIO())
    for text in ("", "begun", "\n"):
        display.show(Step(0, (Token(1, text, "plain"),), (), 0, (), "", 0, 0, 0, 0))
        display.reading("for the draft model", 1, 2)
        display.reading("for the draft model", 2, 2)
    assert len(drawn) == 4


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
    unmeasured = GenerationResult(Settings(), 0, []).unmeasured
    known = {"settings": SETTINGS, "notes": metrics.notes, "unmeasured": unmeasured, **known}
    run = RunRecord(metrics, load_s=2.5, measuring_s=0.35, memory=memory, machine=["2 threads"], **known)
    console = SafeConsole(file=StringIO(), width=110, _environ={})
    console.print(*(part(run) for part in parts or [run_report]), sep="\n")
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("none", None),
        ("identical", BaselineResult(4.0, True, speedup=Interval(2.0, 1.75, 2.25, 6), drafted_tokens_per_s=8.0)),
        ("tie", BaselineResult(16.0, False, Divergence(5, 4, 0.012, 0.03, "logits"), differs_at=5)),
        ("sampled", BaselineResult(8.0, None)),
    ],
)
def test_report(name, baseline, snapshot):
    parts = [run_report, run_details] if name in ("none", "tie") else [run_report]
    snapshot(f"report_{name}.txt", shown(fixed_report(), *parts, baseline=baseline))


@pytest.mark.parametrize(
    ("interval", "claim"),
    [
        (Interval(1.8, 1.5, 2.1, 6), "1.80x as fast as the target alone (1.50 to 2.10)"),
        (Interval(0.8, 0.7, 0.9, 6), "slower than the target alone: 0.80x (0.70 to 0.90)"),
        (Interval(1.02, 0.95, 1.08, 6), "as fast as the target alone"),
        (Interval(0.93, 0.85, 0.997, 6), "7.0 tokens/s with drafts, 4.0 alone: too uneven to compare"),
        (Interval(1.2, 0.9, 1.6, 5), "7.0 tokens/s with drafts, 4.0 alone: too short to compare"),
        (Interval(1.2, None, None, 2), "7.0 tokens/s with drafts, 4.0 alone: too short to compare"),
    ],
)
def test_only_what_the_interval_allows_is_claimed(interval, claim):
    """The speed comes first unless the bars show it. Beside the target's is the one that was measured in turn with it,
    not that of the answer, which ran first.
    """
    measured = {"speedup": interval, "drafted_tokens_per_s": 7.0}
    for baseline in (BaselineResult(4.0, True, **measured), BaselineResult(4.0, None, probes=5, **measured)):
        headline = shown(fixed_report(), baseline=baseline).split("\n")[0]
        same = ", same text" if baseline.identical else ""
        assert headline in (f"{claim}{same}", f"8.0 tokens/s, {claim}{same}")
        assert ("tokens/s" in headline) != interval.excludes_one
    line = str(turn_line(fixed_report(), BaselineResult(4.0, None, probes=5, speedup=interval)))
    assert (claim in line) == interval.excludes_one and ("x" in line) == interval.excludes_one


def undrafted(why=LengthReason.TOO_UNSURE):
    """An answer without drafts: its metrics, and why nothing was drafted."""
    metrics = Metrics.of(run(FakeTarget(Counting()), drafter=ScriptedDrafter([]), max_tokens=9))
    metrics.ttft_s, metrics.total_s = 0.13, 1.13
    metrics.history = [replace(step, why=why) for step in metrics.history]
    return metrics, why_nothing_was_drafted(metrics.history, 1.62, "ngram")


@given(
    ratios=st.lists(st.floats(0.2, 5), max_size=12),
    alone=st.floats(0.5, 50),
    probes=st.integers(0, 9),
    drafts=st.booleans(),
)
def test_a_ratio_is_shown_only_for_drafts_and_with_an_interval_that_excludes_1(ratios, alone, probes, drafts):
    interval = geometric_interval(ratios)
    metrics = fixed_report() if drafts else undrafted()[0]
    measured = {"speedup": interval, "drafted_tokens_per_s": 8.0, "probes": probes}
    text = shown(metrics, baseline=BaselineResult(alone, None if probes else True, **measured))
    claimed = drafts and excludes_one(interval)
    assert ratios_in(text) == ([f"{interval.mean:.2f}x"] if claimed else [])
    bars = re.findall(r"([\d,.]+) tokens/s ([█▏▎▍▌▋▊▉]+)", text)
    assert bool(bars) == bool(claimed)
    assert_in_proportion([cells(bar) for _, bar in bars], [float(speed.replace(",", "")) for speed, _ in bars], 0.01)


def test_where_nothing_was_drafted_the_report_says_why_and_claims_nothing():
    metrics, why = undrafted()
    alone = {"settings": replace(SETTINGS, drafter="none"), "baseline": BaselineResult(4.0, True)}
    assert shown(metrics, **alone).startswith("8.0 tokens/s, the target alone, same text\nstopped at -n 9; ")
    text = shown(metrics, baseline=BaselineResult(4.0, True), undrafted=why)
    assert text.startswith("8.0 tokens/s, nothing was drafted (2 tokens take 1.6x as long as 1), same text\n")
    assert "2.00x" not in text and "█" not in text
    assert "--what-if rtx-4090" in shown(metrics, run_details, undrafted=why) and "rtx-4090" in hardware.names()
    assert undrafted(LengthReason.NONE)[1] == "nothing in the text repeats"
    reasons = [why_nothing_was_drafted(metrics.history, ratio, "model") for ratio in (29, 0.9, None)]
    assert reasons == ["2 tokens take 29.0x as long as 1: busy machine?", *["it doesn't pay here"] * 2]
    assert why_nothing_was_drafted([], 1.6, "model") == ""
    assert str(turn_line(metrics, None)) == "8.0 tokens/s, nothing was drafted, stopped at -n"
    metrics.notes = ("CPU busy: using 1 thread (-t sets it)",)
    text = shown(metrics, settings=replace(SETTINGS, temperature=0.8, seed=7), undrafted=why)
    assert metrics.notes[0] in " ".join(text.split()) and "seed" in text


def test_a_slow_model_takes_seconds_a_token():
    report = fixed_report()
    report.total_s = 11.13
    assert "0.7 tokens/s, 1.38 s a token" in shown(report, run_details)


TIE = BaselineResult(4.0, False, Divergence(5, 4, 0.012, 0.03, "logits"), Interval(2.0, 1.75, 2.25, 6), differs_at=5)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (BaselineResult(4.0, True), "same text, token for token; 8.0 tokens/s with drafts, 4.0 alone (one answer"),
        (TIE, "the texts differ from token 6: proved to be rounding: "),
        (replace(TIE, divergence=None), "the texts differ from token 6: cause unknown: "),
        (BaselineResult(4.0, None), "sampled again: "),
    ],
)
def test_alone_says_whether_the_text_is_the_same_and_why_not_and_claims_no_ratio(found, line):
    assert str(alone_line(fixed_report(), found)).startswith(line)
    assert "2.00x" not in str(alone_line(fixed_report(), found))
    same = "same text, token for token; nothing was drafted"
    assert str(alone_line(undrafted()[0], BaselineResult(4.0, True))) == same
