"""`--accept typical` is called lossy wherever it is, and nowhere else: reports, comparisons, JSON, recordings."""

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, succeeded, told

from specdec_cli.measure.traces import read_trace

MODELS = ("-m", TARGET, "-md", DRAFT)
TYPICAL = (*MODELS, "-k", 4, "-n", 24, "--accept", "typical")
HOT = ("--temp", 1.0, "-s", 5)


def asked(command, *args):
    return succeeded(command, *args, COLUMNS="200")


def answer(*args):
    return told("run", *args, PROMPT)


def test_an_answer_its_report_and_its_recording_say_that_it_is_lossy_and_by_how_much(tmp_path):
    path = tmp_path / "run.jsonl"
    text = asked("run", *TYPICAL, *HOT, "--baseline", PROMPT).stderr
    assert "accept=typical (lossy)" in text and "LOSSY" in text and "total variation" in text
    assert "LOSSY: not the target's distribution" in text and "same distribution" not in text
    found = answer(*TYPICAL, *HOT, "--trace", path)
    distance = found["stats"]["distance_per_token"]
    assert found["lossless"] is False and 0 < distance < 1
    again = asked("replay", path)
    assert again.stdout.rstrip("\n") == found["text"].rstrip("\n")
    assert f"{distance:.3f}" in again.stderr and "LOSSY" in again.stderr and "typical (lossy)" in again.stderr
    settings, events = read_trace(path)
    assert settings["accept"] == "typical"
    total = sum(getattr(event, "distance", None) or 0 for event in events)
    assert total == pytest.approx(distance * found["completion_tokens"])


def test_what_is_exact_is_not_called_lossy(tmp_path):
    """The rule at temperature 0, and the target alone."""
    path = tmp_path / "run.jsonl"
    greedy, own = answer(*TYPICAL, "--trace", path), answer(*TYPICAL, "--drafter", "none")
    assert greedy["tokens"] == own["tokens"] and greedy["stats"]["accepted"] > 0
    sampled = answer(*TYPICAL, *HOT, "--drafter", "none")
    assert sampled["tokens"] == answer(*TYPICAL, *HOT, "--drafter", "none", "--accept", "match")["tokens"]
    for found in (greedy, sampled):
        assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    for flags in ((), (*HOT, "--drafter", "none")):
        assert "lossy" not in asked("run", *TYPICAL, *flags, PROMPT).stderr.lower()
    compared = asked("compare", *TYPICAL, PROMPT).stdout
    assert "lossy" not in compared.lower() and "identical" in compared
    assert "lossy" not in asked("replay", path).stderr.lower() and "distance" not in path.read_text()


def test_tune_has_nothing_to_tune():
    done = call("tune", *MODELS, "--accept", "typical", "--temp", "0.8")
    assert_refused(done, 2, "--accept typical", "rejection or match")
