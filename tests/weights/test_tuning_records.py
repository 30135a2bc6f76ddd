"""What `tune` keeps: where, what comes back, and what is refused."""

import json
import os
from dataclasses import replace

import pytest
from driver import DRAFT, TARGET

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.pairs import profiles
from specdec_cli.weights import tuning
from specdec_cli.weights.tuning import Tuning

GREEDY, DRAWN = Calibration(0.5, 1.0, looks=9), Calibration(-0.5, 0.8, looks=5)
COSTS = Costs(Curve({1: 0.02, 2: 0.03, 16: 0.07}), Curve({1: 0.004, 512: 0.1}), 0.0001)
FOUND = Tuning("a machine; 8 cores", 4, 2, -1, 0, COSTS, {"greedy": GREEDY, "rejection": DRAWN})


@pytest.fixture
def pair(tmp_path):
    """Two files that stand for models."""
    paths = tmp_path / "big.gguf", tmp_path / "small.gguf"
    for i, path in enumerate(paths):
        path.write_bytes(bytes(1000 - i))
    return paths


def test_what_is_kept_comes_back_for_files_of_these_names_sizes_and_ages(pair, tmp_path):
    assert tuning.load(*pair) is None
    path = tuning.save(*pair, FOUND)
    assert profiles.config_dir() in path.parents and path.stem.startswith("big+small-")
    assert tuning.load(*pair) == FOUND and tuning.load(*reversed(pair)) is None
    later = replace(FOUND, machine="another", calibrations={"greedy": Calibration.prior(greedy=True)})
    assert tuning.save(*pair, later) == path
    calibrations = {**later.calibrations, "rejection": DRAWN}  # what it has not learned anew, it keeps
    assert tuning.load(*pair) == replace(later, calibrations=calibrations)
    before = pair[1].stat()
    pair[1].write_bytes(bytes(10))  # another quantisation, say
    assert tuning.load(*pair) is None
    pair[1].write_bytes(bytes(999))  # trained anew
    os.utime(pair[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert tuning.load(*pair) is None
    os.utime(pair[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "elsewhere").mkdir()
    assert tuning.load(pair[0].rename(tmp_path / "elsewhere" / "big.gguf"), pair[1]) is not None


def test_whose_recording(pair, tmp_path):
    """Only the bundled pair's come with it: a folder of that name beside other models is none of ours."""
    bundled = TARGET.parent / "recordings" / "greedy.json.gz"
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / bundled.name).touch()
    for others in (pair, (TARGET, pair[1]), (pair[0], DRAFT)):
        assert recording_of(*others, "greedy") is None
    assert recording_of(TARGET, DRAFT, "greedy") == bundled
    own = tuning.path_of(TARGET, DRAFT).with_suffix(".greedy.json.gz")
    own.parent.mkdir(parents=True)
    own.touch()
    assert recording_of(TARGET, DRAFT, "greedy") == own
    assert recording_of(TARGET, DRAFT, "rejection") == bundled.with_name("rejection.json.gz")


def test_the_recordings_of_real_pairs_are_found_by_the_names_of_their_models(tmp_path):
    names = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_bytes(b"GGUF")
    found = recording_of(*paths, "coupled")
    assert found is not None and found.parent.name == "qwen2.5-coder"
    assert recording_of(*paths[::-1], "coupled") is None
    assert recording_of(*paths, "match") is None
    with pytest.raises(SpecdecError, match="another target"):  # the names are theirs, the files are not
        recordings.read(found).require(*paths)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(threads=0),
        lambda data: data.update(gpu_layers="all"),
        lambda data: data["costs"].update(verify={}),
        lambda data: data["costs"].update(other=float("inf")),
        lambda data: data["calibrations"]["greedy"].update(offset=float("nan")),
    ],
)
def test_a_wrong_value(pair, spoil):
    data = json.loads(tuning.save(*pair, FOUND).read_text())
    spoil(data)
    tuning.path_of(*pair).write_text(json.dumps(data))
    with pytest.raises(SpecdecError, match="cannot read") as caught:
        tuning.load(*pair)
    assert "specdec tune" in caught.value.hint
