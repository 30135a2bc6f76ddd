"""`specdec ls`, `show` and `rm`: what is there, what is known of it, and what is taken away."""

from __future__ import annotations

import json
from functools import partial
from signal import SIGINT

import pytest
from driver import DRAFT, ESCAPE, TARGET, assert_refused, call, succeeded, told
from hub_pairs import NAME, PAIR, SIZES, SMALL, environment, files, here, own_profile, publish, pull_here, records
from hub_server import HubServer
from terminal import Terminal

from specdec_cli.hub import cache
from specdec_cli.hub.repository import RemoteFile, RemoteModel
from specdec_cli.models import profiles
from specdec_cli.store import pulled_pairs as pairs
from specdec_cli.store import tuning

OTHER = ("--target", f"{SMALL}:Q8_0", "--draft", f"{SMALL}:Q8_0")
"""A pair that has the draft in common with PAIR."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub with the bundled pair, which has been pulled in this process."""
    with HubServer() as hub:
        here(monkeypatch, publish(hub), tmp_path)
        assert pull_here(*PAIR).exit_code == 0
        yield hub


def shown(*args) -> str:
    done = succeeded(*args)
    assert done.stderr == ""
    return done.stdout


def row(name: str, *args):
    (found,) = (row for row in told("ls", *args)["pairs"] if row["name"] == name)
    return found


# --- ls ---


def test_every_pair_has_a_line():
    lines = shown("ls").splitlines()
    assert lines[0].split() == ["name", "for", "size", "here", "speedup", "what"]
    assert {line.split()[0] for line in lines[1:-2]} == set(profiles.names())
    assert max(map(len, lines)) <= 80
    assert "specdec pull" in lines[-1] and "specdec show" in lines[-1]
    demo, *rest = told("ls")["pairs"]
    assert (demo["name"], demo["here"], demo["size"]) == ("demo", "yes", sum(SIZES))
    assert {row["here"] for row in rest} == {"no"}
    order = [(row["fits_gb"], row["size"], row["name"]) for row in rest]
    assert order == sorted(order)  # the smallest machines first


def test_only_what_is_here():
    own_profile("mine", f"target: {TARGET}\ndraft: absent.gguf\n")
    own_profile("alone", f"target: {TARGET}\n")
    assert {found["name"] for found in told("ls", "--here")["pairs"]} == {"demo", "alone"}
    assert (row("mine")["here"], row("mine")["size"]) == ("in part", None)
    assert row("alone")["size"] == SIZES[0]
    assert "qwen" not in shown("ls", "--here")


@pytest.mark.parametrize(
    "broken", ["target: [1\n", "draft: x\n", "target: x\nlicense: MIT\n", "target: x\ndownload_gb: .inf\n"]
)
def test_a_broken_profile_is_noted_and_hides_no_other(broken):
    own_profile("broken", broken)
    result = told("ls")
    assert len(result["pairs"]) == len(profiles.names()) - 1
    (note,) = result["notes"]
    assert "broken.yaml" in note
    assert "note: " in shown("ls") and "demo" in shown("ls")


def test_a_profile_of_the_users_overrides():
    own_profile("demo", "target: org/t:Q8_0\ndraft: org/d:Q8_0\ndescription: my own\nfits_gb: 3.5\n")
    found = row("demo")
    assert (found["description"], found["here"], found["fits_gb"]) == ("my own", "no", 3.5)


# --- the last measured speedup ---


def test_a_comparison_leaves_its_speedup():
    prompts = ("def f(", "class A:", "import os", "x = [")
    summaries = told("compare", "-k", "3", "-n", "8", "--repeat", "2", *prompts)["summaries"]
    (summary,) = (found["speedup"] for found in summaries if found["category"] == "all" and found["speedup"])
    speed = row("demo")["speed"]
    assert (speed["speedup"], speed["settings"]) == (summary["mean"], "k=3") and speed["low"] is not None
    assert (speed["low"], speed["high"]) == (summary["low"], summary["high"])
    (line,) = (line for line in shown("ls").splitlines() if line.startswith("demo "))
    assert line.split()[4] == f"{speed['speedup']:.2f}x"
    assert f"{speed['speedup']:.2f}x" in shown("show", "demo") and "k=3" in shown("show", "demo")


def test_the_last_measurement_counts_and_survives_no_change_of_a_file(tmp_path):
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    for path in (target, draft):
        path.write_bytes(b"x")
    own_profile("mine", f"target: {target}\ndraft: {draft}\n")
    assert row("mine")["speed"] is None
    tuning.keep_speed(target, draft, tuning.Speed(1.5, 1.4, 1.6, "k=2", "2026-01-01"))
    tuning.keep_speed(target, draft, tuning.Speed(0.25, None, None, "k=3", "2026-01-02"))
    assert row("mine")["speed"] == {"speedup": 0.25, "low": None, "high": None, "settings": "k=3", "when": "2026-01-02"}
    assert "0.25x, k=3, 2026-01-02" in " ".join(shown("show", "mine").split())
    target.write_bytes(b"another model")
    assert row("mine")["speed"] is None


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "null", "{}", '"x"', '{"speedup": 1}', "[" * 9999),
        '{"speedup": "fast", "low": 1, "high": 2, "settings": "k=3", "when": "now"}',
        '{"speedup": null, "low": 1, "high": 2, "settings": "k=3", "when": "now"}',
        '{"speedup": 1.5, "low": "1", "high": [2], "settings": "k=3", "when": "now"}',
    ],
)
def test_a_damaged_measurement_is_none(tmp_path, content):
    tuning.keep_speed(TARGET, DRAFT, tuning.Speed(1.5, 1.4, 1.6, "k=3", "2026-01-01"))
    (path,) = (profiles.config_dir() / "tuned").glob("*.speed.json")
    path.write_text(content)
    assert row("demo")["speed"] is None
    assert shown("ls", "--here") and shown("show", "demo")


def test_a_measurement_that_cannot_be_kept_is_no_error(tmp_path):
    profiles.config_dir().mkdir(parents=True)
    (profiles.config_dir() / "tuned").write_text("a file")
    tuning.keep_speed(TARGET, DRAFT, tuning.Speed(1.5, None, None, "k=3", "2026-01-01"))
    tuning.keep_speed(tmp_path / "gone.gguf", DRAFT, tuning.Speed(1.5, None, None, "k=3", "2026-01-01"))
    assert tuning.last_speed(TARGET, DRAFT) is None


# --- show ---


def test_all_that_is_known_of_a_pair():
    name = "gemma-3-27b"
    text, profile = "".join(shown("show", name).split()), profiles.load(name)
    for part in (profile.target, profile.draft, profile.why, profile.licence, profile.verified, *profile.sources):
        assert "".join(part.split()) in text
    assert f"{profile.download_gb:g}GB" in text and f"{profile.memory_gb:g}GB" in text
    assert all(f"{key}{value}" in text for key, value in profile.settings.items())
    assert f"specdecpull{name}" in text and "specdecrun" not in text
    result = told("show", name)
    assert (result["why"], result["sources"], result["here"]) == (profile.why, profile.sources, "no")


def test_a_name_of_no_pair():
    assert_refused(call("show", "qwen3-8"), 1, "no profile 'qwen3-8'", "'qwen3-8b'")
    assert_refused(call("show", "../demo", "--json"), 1, "no profile")


@pytest.mark.parametrize("value", ["2026-01-01", "!!set {a}", "!!binary aGk=", "{1: 2}", "[x]"])
def test_settings_that_make_no_sense_are_told_before_anything_runs(value):
    own_profile("mine", f"target: x.gguf\nsettings:\n  temp: {value}\n")
    assert_refused(call("show", "mine"), 2, "temp", "not a number")
    own_profile("mine", "target: x.gguf\nsettings:\n  tmep: 1\n")
    assert_refused(call("show", "mine"), 2, "tmep", "'temp'")


# --- rm ---


def test_a_pair_comes_and_goes(hub, tmp_path):
    found = row(NAME)
    assert (found["here"], found["size"]) == ("yes", sum(SIZES)) and found["pulled"]
    assert found["paths"][0].endswith("target-Q4_K_M.gguf")
    assert told("rm", NAME, "--yes")["freed"] == sum(SIZES)
    assert files(tmp_path) == records(tmp_path) == [] and NAME not in profiles.names()
    assert not [path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_files_that_another_pair_uses_stay(hub, tmp_path):
    assert pull_here(*OTHER, "--as", "other").exit_code == 0
    assert told("rm", NAME, "--yes")["freed"] == SIZES[0]
    assert records(tmp_path) == ["other"] and files(tmp_path) == ["draft-Q8_0.gguf"]
    assert row("other")["here"] == "yes"
    assert pull_here(*PAIR).exit_code == 0
    done = shown("rm", "other", "-y")
    assert "0 B freed" in done and "Kept for another pair: draft-Q8_0.gguf" in done
    assert row(NAME)["here"] == "yes"


def test_without_being_asked_nothing_goes(hub, tmp_path):
    for args in ((NAME,), (NAME, "--json")):
        assert_refused(call("rm", *args), 2, "--yes")
    assert records(tmp_path) == [NAME] and len(files(tmp_path)) == 2
    assert_refused(call("rm", NAME[:-1], "--yes"), 1, f"no pair {NAME[:-1]!r}", f"Did you mean {NAME!r}?")
    assert_refused(call("rm", "qwen3-8b", "--yes"), 1, "no pair", NAME)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"y\n", 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((b"\n", 1), (SIGINT, 130)))],
)
def test_on_a_terminal_it_asks(hub, tmp_path, answer, code):
    with Terminal("rm", NAME, env=environment(hub, tmp_path)) as terminal:
        question = terminal.read(until="]:")
        assert NAME in question and "10.7 MB" in question
        if code == 130:
            ended = terminal.interrupted_at_a_question(partial(terminal.process.send_signal, answer))
        else:
            ended = terminal.ended_by(answer, within=10)
    assert ended == code
    assert files(tmp_path) == ([] if code == 0 else ["draft-Q8_0.gguf", "target-Q4_K_M.gguf"])


def test_an_interrupted_pull_is_seen_and_can_be_removed(tmp_path):
    own_profile("begun", "target: org/begun-GGUF:Q8_0\ndraft: org/other-GGUF:Q8_0\n")
    blobs = cache.folder_of("org/begun-GGUF") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_bytes(b"x" * 3000)
    (blobs / f"{'b' * 64}.1234abcd.incomplete").write_bytes(b"another program's")
    assert row("begun")["here"] == "in part"
    assert_refused(call("rm", "begun"), 2, "--yes")
    assert told("rm", "begun", "--yes") == {"name": "begun", "freed": 3000, "kept": []}
    assert row("begun")["here"] == "no" and len(list(blobs.iterdir())) == 1
    assert_refused(call("rm", "begun", "--yes"), 1, "no pair 'begun'")


def test_a_damaged_record_is_told(hub, tmp_path):
    record = profiles.config_dir() / "pulled" / f"{NAME}.json"
    record.write_text("{")
    assert_refused(call("rm", NAME, "--yes"), 1, "cannot read", f"specdec pull {NAME}")
    done = call("ls")
    assert done.exit_code == 0 and "demo" in done.stdout and f"{NAME}.json" in "".join(done.stdout.split())


def test_no_file_name_moves_the_cursor():
    """What a repository calls its files is somebody else's choice."""
    draft = RemoteModel("org/d", "org/d", "c" * 40, (RemoteFile("d.gguf", 5, "a" * 64),))
    pairs.save(pairs.PulledPair("one", draft, None, "alone", "2026-01-01"))
    path = profiles.config_dir() / "pulled" / "one.json"
    record = path.read_text()
    for evil in (ESCAPE + "[2J", "\u202e", "\0", "\n"):
        path.write_text(record.replace('"d.gguf"', json.dumps(f"d-{evil}.gguf")))
        done = call("rm", "one", "--yes")
        assert done.exit_code == 1 and "impossible names" in done.stderr
        assert evil not in done.stderr.replace("\n", "", 2)


def test_without_a_cache_none_is_made(tmp_path):
    assert "demo" in shown("ls", "--here") and not (tmp_path / "hf").exists()
