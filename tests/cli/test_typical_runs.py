"""`--accept typical` is called lossy wherever it is, and nowhere else: reports, comparisons, JSON, recordings."""

import json

import numpy as np
import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft
from specdec_cli.decoding.typical import typical
from specdec_cli.store.traces import read_trace

MODELS = ("-m", TARGET, "-md", DRAFT)
TYPICAL = (*MODELS, "-k", 4, "-n", 48, "--accept", "typical")
HOT = ("--temp", 1.0, "-s", 5)


@pytest.fixture(autouse=True)
def own_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def asked(command, *args):
    done = CliRunner().invoke(app, [command, *map(str, args)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    return done


def answer(*args):
    return json.loads(asked("run", *args, "--json", PROMPT).stdout)


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


def test_at_temperature_0_it_is_exact_and_is_not_called_lossy():
    found, own = answer(*TYPICAL), answer(*TYPICAL, "--drafter", "none")
    assert found["tokens"] == own["tokens"] and found["stats"]["accepted"] > 0
    assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    assert "lossy" not in asked("run", *TYPICAL, PROMPT).stderr.lower()
    compared = asked("compare", *TYPICAL, PROMPT).stdout
    assert "lossy" not in compared.lower() and "identical" in compared


def test_the_target_alone_is_never_lossy():
    found = answer(*TYPICAL, *HOT, "--drafter", "none")
    assert found["lossless"] is True and found["stats"]["distance_per_token"] is None
    assert "lossy" not in asked("run", *TYPICAL, *HOT, "--drafter", "none", PROMPT).stderr.lower()
    exact = answer(*TYPICAL, *HOT, "--drafter", "none", "--accept", "match")
    assert found["tokens"] == exact["tokens"]


@pytest.mark.parametrize("form", [(), ("--md",)])
def test_a_comparison_says_it_of_the_arms_that_are(form):
    text = asked("compare", *MODELS, "-k", 4, "-n", 48, *HOT, "--vs", "accept=typical", *form, PROMPT).stdout
    lines = [line for line in text.splitlines() if "lossy" in line.lower()]
    assert all("accept=typical" in line or "This arm is LOSSY" in line for line in lines)
    assert any("(lossy)" in line for line in lines) and any("total variation" in line for line in lines)


def test_a_comparison_whose_settings_are_lossy_has_an_exact_baseline():
    result = json.loads(asked("compare", *TYPICAL, *HOT, "--json", PROMPT).stdout)
    distances = {summary["arm"]: summary["distance_per_token"] for summary in result["summaries"]}
    assert distances["target alone"] is None and distances["k=4"] > 0
    assert "LOSSY" in " ".join(result["verdicts"]["k=4"])
    text = asked("compare", *TYPICAL, *HOT, PROMPT).stdout
    assert "k=4 (lossy)" in text and "alone (lossy)" not in text


def test_tune_has_nothing_to_tune():
    done = CliRunner().invoke(app, ["tune", *map(str, MODELS), "--accept", "typical", "--temp", "0.8"])
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


def test_a_recording_at_temperature_0_says_nothing_of_the_kind(tmp_path):
    path = tmp_path / "run.jsonl"
    answer(*TYPICAL, "--trace", path)
    assert "lossy" not in asked("replay", path).stderr.lower()
    assert all("distance" not in line for line in path.read_text().splitlines())


# --- the measured distance, where siblings are tried ---


def judged(draft, p, settings, n=5000, seed=1):
    """How often each token really came, and what the rule said of its distance."""
    rng, sampler = np.random.default_rng(seed), StandardSampler(settings)
    rows = np.log(np.stack([p] * (1 + len(draft.tokens)))).astype(np.float32)
    counts, said = np.zeros(p.size), set()
    for _ in range(n):
        found = typical(draft, rows, sampler, rng)
        counts[draft.tokens[found.path[0]] if found.path else found.token] += 1
        said.add(round(found.distance, 9))
    return counts / n, said, sampler.categorical(rows[0])


WIDE = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CUT = SamplingSettings(temperature=1.0, top_k=4, top_p=0.97, min_p=0.0)
P = np.array([0.55, 0.2, 0.12, 0.06, 0.04, 0.03])


@pytest.mark.parametrize("sampling", [WIDE, CUT])
@pytest.mark.parametrize("tokens", [(0,), (5,), (5, 1), (1, 0), (4, 5, 2)])
def test_siblings_that_were_chosen_not_drawn(sampling, tokens):
    """Dense and sparse distributions; of one-hot siblings the distance is that of what comes out."""
    seen, said, p = judged(Draft(tokens, None, "", (-1,) * len(tokens)), P, sampling)
    really = 0.5 * sum(abs(seen[token] - p.prob(token)) for token in range(P.size))
    assert len(said) == 1 and said.pop() == pytest.approx(really, abs=0.025)


def test_siblings_of_which_none_could_stand_change_nothing():
    seen, said, p = judged(Draft((5, 4), None, "", (-1, -1)), P, WIDE, n=100)
    assert said == {0.0} and seen[0] > 0.3 and p.prob(5) > 0


@pytest.mark.parametrize("sparse", [True, False])
def test_a_drawn_sibling_after_one_that_cannot_stand(sparse):
    """What the second was drawn from is known, whatever it turned out to be."""
    ids = np.array([0, 1, 2, 4]) if sparse else None
    q = np.array([0.1, 0.3, 0.4, 0.2]) if sparse else np.array([0.1, 0.3, 0.4, 0.0, 0.2, 0.0])
    first = Categorical(np.array([5]), np.ones(1))
    counts, said, rng, n = np.zeros(P.size), set(), np.random.default_rng(2), 8000
    rows, sampler = np.log(np.stack([P] * 3)).astype(np.float32), StandardSampler(WIDE)
    for _ in range(n):
        second = Categorical(ids, q)
        x = second.draw(rng)
        draft = Draft((5, x), (first, second), "", (-1, -1))
        found = typical(draft, rows, sampler, rng)
        counts[draft.tokens[found.path[0]] if found.path else found.token] += 1
        said.add(round(found.distance, 9))
    assert len(said) == 1 and said.pop() == pytest.approx(0.5 * np.abs(counts / n - P).sum(), abs=0.02)


def test_a_place_without_a_draft_is_exact():
    rows = np.log(np.stack([P])).astype(np.float32)
    assert typical(Draft(), rows, StandardSampler(WIDE), np.random.default_rng(0)).distance is None
