"""Full disks and folders that cannot be written: what was there stays, and nothing that was measured is lost."""

import json
import shutil

import pytest
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, complaint, run, specdec, succeeded
from full_disk import full_disk

from specdec_cli.measure import kept_comparisons
from specdec_cli.measure.traces import INCOMPLETE, TraceFile, read_trace

BRIEF = ("-m", TARGET, "-md", DRAFT, "--raw", "-k", 2, "-n", 6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording, a page and a picture of it."""
    folder = tmp_path_factory.mktemp("recorded")
    trace = folder / "run.jsonl"
    succeeded("run", *BRIEF, PROMPT, "--trace", trace)
    succeeded("replay", trace, "-o", folder / "page.html", "-o", folder / "run.svg")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("room", [100, 5000])
def test_a_full_disk_costs_no_older_file(recorded, room):
    before = contents(recorded)
    trace = recorded / "run.jsonl"
    with full_disk(min(room, 1000)):
        done = run(*BRIEF, "-q", PROMPT, "--trace", trace)
    assert done.exit_code == 1 and done.stdout and "the trace is not written whole" in done.stderr
    for name in ("page.html", "run.svg"):
        with full_disk(room):
            done = call("replay", trace, "-o", recorded / name)
        assert done.exit_code in (1, 2) and "cannot write" in done.stderr and name in done.stderr
    assert contents(recorded) == before


def test_the_disk_is_not_blamed_for_a_name_that_is_too_long(recorded):
    done = specdec("replay", recorded / "run.jsonl", "-o", "x" * 300 + ".html")
    assert_refused(done, 1, "File name too long", "Check its path")


def test_of_a_new_recording_what_there_was_room_for_stays(tmp_path):
    with full_disk(1000):
        assert run(*BRIEF, "-q", PROMPT, "--trace", tmp_path / "new.jsonl").exit_code == 1
    assert INCOMPLETE in read_trace(tmp_path / "new.jsonl")[1][-1].notes


def test_a_run_that_answers_nothing_leaves_an_older_recording(recorded):
    before = contents(recorded)
    TraceFile(recorded / "run.jsonl", {"target": "x"}).close()
    assert contents(recorded) == before


def test_a_comparison_that_cannot_be_kept_is_refused_before_or_shown_after():
    kept = ("compare", *BRIEF, "--repeat", 1, PROMPT, "--save", "older")
    succeeded(*kept)
    (path,) = kept_comparisons.path_of("older").parent.iterdir()
    before = path.read_bytes()
    with full_disk(4095):
        assert_refused(call(*kept), 1, "cannot write to")
    assert_refused(call(*kept, XDG_DATA_HOME="/dev/null"), 1, "cannot write to")
    kept_comparisons.path_of("folder").mkdir()
    assert_refused(call(*kept[:-1], "folder"), 1, "it is a folder")
    with full_disk(4096):
        done = call(*kept)
    assert done.exit_code == 1 and "k=2" in done.stdout and "File too large" in done.stderr
    assert path.read_bytes() == before and not list(path.parent.glob("*.tmp"))


def test_no_answer_is_lost_for_want_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    unusable = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path / "file"))
    done = call("run", *BRIEF, "-k", "auto", PROMPT, "--json", **unusable)
    notes = json.loads(done.stdout)["notes"]
    assert done.exit_code == 0 and len(notes) <= 2, notes
    assert call("compare", "--list", **unusable).exit_code == call("ls", **unusable).exit_code == 0


def test_a_full_disk_is_blamed_for_a_copy_that_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with full_disk(5000):
        done = call("draft", "quantize", "-m", TARGET, "--type", "Q2_K", "-o", "draft.gguf")
    assert (done.exit_code, done.stdout) == (1, "")
    what, do = complaint("\n".join(done.stderr.splitlines()[-2:]))  # after what was said of the copy
    assert "the disk has no room for draft.gguf" in what and "Free some space" in do
    assert not list(tmp_path.iterdir())


def test_that_there_is_no_folder_for_temporary_files_is_said(tmp_path, monkeypatch):
    new = shutil.copy(TARGET, tmp_path / "new.gguf")  # a child tries it, whose output goes through such a file
    monkeypatch.setattr("tempfile.tempdir", None)
    with full_disk(0):
        done = call("run", "-m", new, "--drafter", "none", PROMPT)
    assert done.exit_code == 1 and done.stderr.startswith("specdec: can't use a temporary file: No usable")
