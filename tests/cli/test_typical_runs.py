"""`--accept typical` is called lossy wherever it is, and nowhere else: reports, comparisons, JSON, recordings."""

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, succeeded, told

from specdec_cli.store.traces import read_trace

MODELS = ("-m", TARGET, "-md", DRAFT)
TYPICAL = (*MODELS, "-k", 4, "-n", 24, "--accept", "typical")
HOT = ("--temp", 1.0, "-s", 5)


def asked(command, *args):
    return succeeded(command, *args, COLUMNS="200")


def answer(*args):
    return told("run", *args, PROMPT)


def test_json_says_that_it_is_not_lossless_and_by_how_much():
    found = answer(*TYPICAL, *HOT)
    assert found["lossless"] is False and 0 < found["stats"]["distance_per_token"] < 1
    for rule in ("match", "rejection"):
        found = answer(*TYPICAL, *HOT, "--accept", rule)
        assert found["lossless"] is True and found["stats"]["distance_per_token"] is None


def test_the_report_says_it_in_its_settings_and_in_a_line_of_its_own():
    text = asked("run", *TYPICAL, *HOT, "--baseline", PROMPT).stderr
    assert "accept=typical (lossy)" in text and "LOSSY" in text and "total variation" in text
    assert "LOSSY: not the target's distribution" in text and "same distribution" not in text


def test_at_temperature_0_it_is_exact_and_is_not_called_lossy(tmp_path):
    path = tmp_path / "run.jsonl"
    found, own = answer(*TYPICAL, "--trace", path), answer(*TYPICAL, "--drafter", "none")
    assert found["tokens"] == own["tokens"] and found["stats"]["accepted"] > 0
    assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    assert "lossy" not in asked("run", *TYPICAL, PROMPT).stderr.lower()
    compared = asked("compare", *TYPICAL, PROMPT).stdout
    assert "lossy" not in compared.lower() and "identical" in compared
    assert "lossy" not in asked("replay", path).stderr.lower()
    assert all("distance" not in line for line in path.read_text().splitlines())


def test_the_target_alone_is_never_lossy():
    found = answer(*TYPICAL, *HOT, "--drafter", "none")
    assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    assert "lossy" not in asked("run", *TYPICAL, *HOT, "--drafter", "none", PROMPT).stderr.lower()
    exact = answer(*TYPICAL, *HOT, "--drafter", "none", "--accept", "match")
    assert found["tokens"] == exact["tokens"]


@pytest.mark.parametrize("form", [(), ("--md",)])
def test_a_comparison_says_it_of_the_arms_that_are(form):
    text = asked("compare", *MODELS, "-k", 4, "-n", 24, *HOT, "--vs", "accept=typical", *form, PROMPT).stdout
    lines = [line for line in text.splitlines() if "lossy" in line.lower()]
    assert all("accept=typical" in line or "This arm is LOSSY" in line for line in lines)
    assert any("(lossy)" in line for line in lines) and any("total variation" in line for line in lines)


def test_a_comparison_whose_settings_are_lossy_has_an_exact_baseline():
    result = told("compare", *TYPICAL, *HOT, PROMPT)
    distances = {summary["arm"]: summary["distance_per_token"] for summary in result["summaries"]}
    assert distances["target alone"] is None and distances["k=4"] > 0
    assert "LOSSY" in " ".join(result["verdicts"]["k=4"])
    text = asked("compare", *TYPICAL, *HOT, PROMPT).stdout
    assert "k=4 (lossy)" in text and "alone (lossy)" not in text


def test_tune_has_nothing_to_tune():
    done = call("tune", *MODELS, "--accept", "typical", "--temp", "0.8")
    assert_refused(done, 2, "--accept typical", "rejection or match")


def test_a_recording_of_it_says_so_too(tmp_path):
    path = tmp_path / "run.jsonl"
    found = answer(*TYPICAL, *HOT, "--trace", path)
    again = asked("replay", path)
    assert again.stdout.rstrip("\n") == found["text"].rstrip("\n")
    assert f"{found['stats']['distance_per_token']:.3f}" in again.stderr
    assert "LOSSY" in again.stderr and "typical (lossy)" in again.stderr
    settings, events = read_trace(path)
    assert settings["accept"] == "typical"
    assert sum(getattr(event, "distance", None) or 0 for event in events) == pytest.approx(
        found["stats"]["distance_per_token"] * found["completion_tokens"]
    )
