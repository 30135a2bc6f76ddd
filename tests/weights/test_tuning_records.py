"""What `tune` keeps: where, what comes back, and what is refused."""

import json
from dataclasses import replace

import pytest
from driver import DRAFT, TARGET

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import BINS, Calibration
from specdec_cli.json_store import to_json
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.pairs import profiles
from specdec_cli.weights import tuning
from specdec_cli.weights.tuning import Tuning


def learned(greedy=True):
    found = Calibration.prior(greedy)
    for i in range(50):
        found.observe_confidence(i % BINS)
        found.learn(i % BINS, float(i % 3 > 0))
    return found


COSTS = Costs(Curve({1: 0.02, 2: 0.03, 16: 0.07}), Curve({1: 0.004, 512: 0.1}), 0.0001)
FOUND = Tuning("a machine; 8 cores", 4, 2, -1, 0, COSTS, {"greedy": learned(), "rejection": learned(False)})


@pytest.fixture
def pair(tmp_path):
    """Two files that stand for models."""
    paths = tmp_path / "big.gguf", tmp_path / "small.gguf"
    for i, path in enumerate(paths):
        path.write_bytes(bytes(1000 - i))
    return paths


def test_what_is_kept_comes_back_and_a_later_one_takes_its_place(pair):
    assert tuning.load(*pair) is None
    path = tuning.save(*pair, FOUND)
    assert profiles.config_dir() in path.parents and path.stem.startswith("big+small-")
    assert tuning.load(*reversed(pair)) is None
    found = tuning.load(*pair)
    assert replace(found, calibrations={}) == replace(FOUND, calibrations={})
    assert json.loads(path.read_text()) == {"format": 1, **to_json(FOUND)} == {"format": 1, **to_json(found)}
    for kind, before in FOUND.calibrations.items():
        assert found.calibrations[kind].rates() == before.rates()
    later = Tuning("another", 1, 1, -1, -1, COSTS, {"greedy": Calibration.prior(greedy=True)})
    assert tuning.save(*pair, later) == tuning.path_of(*pair)
    found = tuning.load(*pair)
    assert (found.machine, found.threads) == ("another", 1)
    assert found.calibrations["greedy"] == later.calibrations["greedy"]
    assert found.calibrations.keys() == FOUND.calibrations.keys()  # what it has not learned anew, it keeps


def test_other_files_of_the_same_names_are_another_pair(pair, tmp_path):
    path = tuning.save(*pair, FOUND)
    pair[1].write_bytes(bytes(10))  # another quantisation, say
    assert tuning.load(*pair) is None and tuning.path_of(*pair) != path
    pair[1].write_bytes(bytes(999))
    (tmp_path / "elsewhere").mkdir()
    assert tuning.load(pair[0].rename(tmp_path / "elsewhere" / "big.gguf"), pair[1]) is not None


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


@pytest.mark.parametrize("greedy", [True, False])
def test_whose_recording(pair, greedy, tmp_path):
    kind, other_kind = (tuning.kind_of(each, "rejection") for each in (greedy, not greedy))
    bundled = TARGET.parent / "recordings" / f"{kind}.json.gz"
    assert recording_of(TARGET, DRAFT, kind) == bundled
    for others in (pair, (TARGET, pair[1]), (pair[0], DRAFT)):
        assert recording_of(*others, kind) is None
    # Only the bundled pair's recordings come with it: a folder of that name beside other models is none of ours.
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / bundled.name).touch()
    assert recording_of(*pair, kind) is None
    own = tuning.path_of(TARGET, DRAFT).with_suffix(f".{kind}.json.gz")
    own.parent.mkdir(parents=True)
    own.touch()
    assert recording_of(TARGET, DRAFT, kind) == own
    assert recording_of(TARGET, DRAFT, other_kind) == bundled.with_name(f"{other_kind}.json.gz")


ENDLESS = float("inf")
CALIBRATION = ("calibrations", "greedy")
WRONG = [
    ("threads", 0), ("threads_draft", None), ("gpu_layers", "all"), ("costs", "verify", {}), ("costs", "other", -1),
    ("costs", "other", ENDLESS), ("calibrations", []),
    *((*CALIBRATION, name, value) for name in ("offset", "slope", "variance") for value in (float("nan"), -1e9)),
    *((*CALIBRATION, "looks", value) for value in (-5, ENDLESS)),
    *((*CALIBRATION, name, value) for name in ("counts", "accepted", "seen") for value in (
        [1.0] * (BINS - 1), [ENDLESS] * BINS, [-16.0] * BINS,
    )),
    (*CALIBRATION, "accepted", [1e9] * BINS), (*CALIBRATION, "seen", [1.0] * BINS),
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=lambda change: " ".join(map(str, change))[:45])
def test_a_wrong_value(pair, change):
    *path, last, value = change
    data = json.loads(tuning.save(*pair, FOUND).read_text())
    place = data
    for key in path:
        place = place[key]
    place[last] = value
    tuning.path_of(*pair).write_text(json.dumps(data))
    with pytest.raises(SpecdecError, match="cannot read") as caught:
        tuning.load(*pair)
    assert "specdec tune" in caught.value.hint
