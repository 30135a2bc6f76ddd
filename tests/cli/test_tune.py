"""`specdec tune`: what it measures, what it keeps, and what `run` then does with it."""

import itertools
import json
import signal
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices import device
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, complaint, configure, told
from engines import open_session
from full_disk import full_disk
from recorded import recording

from specdec_cli import user_files
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.json_store import to_json
from specdec_cli.llama import host, library, pass_probes
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import tune as tuner
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.measure.tune import MeasuredTuning
from specdec_cli.pairs import profiles
from specdec_cli.weights import model_loading, tuning, weights
from specdec_cli.weights import pass_costs as costing
from specdec_cli.weights.tuning import Tuning

pytestmark = pytest.mark.usefixtures("nothing_known")
CATEGORIES = ["functions", "classes", "tests", "scripts", "loops"]
PAYS = Costs(Curve({1: 0.010, 17: 0.011}), Curve({1: 0.001}))
PASSES = {1: 0.020, 2: 0.030, 4: 0.050}
"""What the stand-in for measuring says of every model."""


def tune(*args, **environment):
    return call("tune", *args, **environment)


def tuned(*args):
    """Its JSON, where nothing is really measured."""
    return told("tune", "--seconds", 1, *args)


def keep(**changes):
    """Something that might have been tuned on this machine."""
    found = {"machine": library.machine(), "threads": 1, "threads_draft": 1, "gpu_layers": -1, "gpu_layers_draft": -1}
    calibrations = {"greedy": Calibration.prior(True)}
    return tuning.save(TARGET, DRAFT, Tuning(**{**found, "costs": PAYS, "calibrations": calibrations, **changes}))


@pytest.fixture
def timed(monkeypatch):
    """Nothing is timed but in name; the list says of which contexts."""
    asked = []

    def pass_seconds(context, *_, **__):
        asked.append(context)
        return PASSES

    for module in (costing, pass_probes):
        monkeypatch.setattr(module, "pass_seconds", pass_seconds)
    return asked


def test_a_machine_that_slows_down_does_not_favour_the_threads_that_are_tried_first(monkeypatch):
    """Two threads are a tenth faster than one, and each measurement runs a fifth slower than the first."""
    monkeypatch.setattr(tuner.host, "physical_cores", lambda: 2)
    monkeypatch.setattr(tuner.Tuner, "_text_for", lambda *_: [1])
    pace, seconds = itertools.count(10, 2), {1: 0.10, 2: 0.09}
    monkeypatch.setattr(pass_probes, "pass_seconds", lambda context, *_: {1: seconds[context.threads] * next(pace)})
    tuning_run, context = object.__new__(tuner.Tuner), SimpleNamespace()
    context.set_threads = partial(setattr, context, "threads")
    tuning_run._seconds, tuning_run.tried = 1.0, {}
    assert tuning_run._fastest("target", context, (1,)) == 2
    assert tuning_run.tried == {"target": {1: pytest.approx(1.3), 2: pytest.approx(1.17)}}


@pytest.fixture
def quick(monkeypatch, timed):
    """Tuning in no time: nothing is recorded either."""
    monkeypatch.setattr(tuner, "_CONTEXT", 256)
    monkeypatch.setattr(tuner.Tuner, "record", lambda self: recording(self._settings.temperature == 0))


@pytest.fixture
def opened():
    """Opens engines on the bundled pair with settings, and closes them."""
    with ExitStack() as engines:
        yield lambda **changes: engines.enter_context(open_session(16, max_tokens=32, **changes))


# --- from end to end ---


@pytest.mark.slow
def test_what_was_tuned_is_told_and_kept_and_a_later_run_measures_nothing(monkeypatch):
    for seconds in (2, 8, 32):  # on a machine so slow that a category was left out
        result = told("tune", "--seconds", seconds)
        if len(result["predictions"]) > len(CATEGORIES):
            break
    assert list(result) == [field.name for field in fields(MeasuredTuning)]
    assert result["notes"] == [] and result["verdict"] and all(result["verdict"])
    assert [part["category"] for part in result["predictions"]] == [*CATEGORIES, "all"]
    assert result["predictions"][-1]["tokens"] == result["recorded_tokens"] >= 100
    for curve in ("verify", "draft"):
        assert {"1", "2"} <= set(result["costs"][curve]) and 0 < result["costs"][curve]["1"] < 1
    assert result["filled"]["tokens"] == 256 - 8 and result["filled"]["target"] > 0.5 * result["costs"]["verify"]["1"]

    assert Path(result["kept"]).parent == profiles.config_dir() / "tuned"
    kept = tuning.load(TARGET, DRAFT)
    assert to_json(kept.costs) == result["costs"] and set(kept.calibrations) == {"greedy"}
    own = recordings.read(recording_of(TARGET, DRAFT, "greedy"))
    assert sum(len(answer.accepted) for answer in own.answers) == result["recorded_tokens"]

    for module in (costing, pass_probes):
        monkeypatch.setattr(module, "pass_seconds", None)
    answer = told("run", PROMPT, "-n", 24)
    assert (answer["notes"], answer["completion_tokens"]) == ([], 24)
    assert answer["tokens"] == told("run", PROMPT, "-n", 24, "--drafter", "none")["tokens"]


# --- what is picked up, and what is not ---


def test_what_was_tuned_is_used_until_other_threads_are(opened, timed):
    keep()
    session = opened()
    assert session.costs.of_pair([1, 2]) == PAYS and timed == [] and session.notes == ()
    session.models.use_threads(2, 2)
    assert session.costs.of_pair([1, 2]) != PAYS


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_known_of_the_pair_is_where_auto_begins(opened, timed, greedy):
    known = Calibration(offset=-9.0, slope=0.1, variance=0.001)  # never accepted
    keep(calibrations={tuning.kind_of(greedy, "rejection"): known})
    for temp in (0.0, 0.8):
        session = opened(temperature=temp)
        report = Metrics.of(session.events(session.tokenize(PROMPT, raw=True), 1))
        assert (report.drafted < 24) == (greedy == (temp == 0)), report.drafted  # a first draft may still be tried


def test_a_damaged_file_costs_no_answer_and_is_replaced(quick, timed):
    path = keep()
    path.write_text(path.read_text().replace('"offset": 1.0', '"offset": NaN'))
    answer = told("run", PROMPT, "-n", 8)
    assert answer["completion_tokens"] == 8 and len(timed) == 2
    (note,) = answer["notes"]
    assert note.startswith("the results of specdec tune are not used: cannot read ")
    tuned()
    tuned("--temp", 0.8)
    kept = tuning.load(TARGET, DRAFT)
    assert kept.costs.verify.points == PASSES and set(kept.calibrations) == {"greedy", "rejection"}
    for kind in kept.calibrations:
        assert recording_of(TARGET, DRAFT, kind).parent == profiles.config_dir() / "tuned"


def test_a_disk_that_is_full_by_then_costs_what_is_kept_and_not_what_was_measured(quick, monkeypatch, tmp_path):
    keep()
    older = {path: path.read_bytes() for path in tuning.path_of(TARGET, DRAFT).parent.iterdir()}
    with full_disk(0):
        assert_refused(tune("--seconds", 1), 1, "cannot write to")
    monkeypatch.setattr(recordings, "write", lambda *_: user_files.write_whole(device(tmp_path, "full"), "x"))
    done = tune("--seconds", 1, "--json")
    result = json.loads(done.stdout)
    assert done.exit_code == 1 and "No space left" in complaint(done.stderr)[0]
    assert result["kept"] == "" and result["predictions"] and "No space left" in result["notes"][0]
    assert older.keys() == set(tuning.path_of(TARGET, DRAFT).parent.iterdir())


# --- threads ---


@pytest.fixture
def eight_cores(monkeypatch, quick):
    """A machine on which the target is fastest with 4 threads and the draft with 2; for single tokens, 8 seem best."""
    monkeypatch.delenv("SPECDEC_THREADS")
    for count in ("physical_cores", "processors"):
        monkeypatch.setattr(host, count, lambda: 8)
    opened, now = LlamaContext.open, {}
    monkeypatch.setattr(LlamaContext, "open", lambda *args: opened(*args[:3], 1, args[4]))
    monkeypatch.setattr(LlamaContext, "set_threads", lambda self, threads: now.update({self: threads}))
    target, draft = {1: 8, 2: 6, 3: 6, 4: 5, 8: 4}, {1: 3, 2: 2, 3: 3, 4: 4, 8: 5}
    four = {1: 30, 2: 20, 3: 15, 4: 10, 8: 40}

    def pass_seconds(context, text, sizes, *_, **__):
        threads = now[context]
        single = target if 4 in sizes else draft
        return {size: (single if size == 1 else four)[threads] / 1000 for size in sizes}

    for module in (costing, pass_probes):
        monkeypatch.setattr(module, "pass_seconds", pass_seconds)


def test_the_best_numbers_of_threads_are_found_and_kept_unless_they_are_given(eight_cores):
    found = tuned()
    kept = tuning.load(TARGET, DRAFT)
    assert (found["threads"], found["threads_draft"]) == (kept.threads, kept.threads_draft) == (4, 2)
    assert found["threads_tried"]["draft"] == {"1": 0.003, "2": 0.002, "4": 0.004, "8": 0.005}
    assert found["costs"]["verify"]["1"] == 0.005 and found["costs"]["draft"]["1"] == 0.002
    for flags, used, tried in ((("-t", 3), (3, 3), set()), (("-td", 1), (4, 1), {"target"})):
        found = tuned(*flags)
        assert (found["threads"], found["threads_draft"]) == used and set(found["threads_tried"]) == tried


# --- the draft beside a GPU ---


@pytest.fixture
def beside_a_gpu(quick, monkeypatch):
    """As if there were one: which layers the draft was loaded with; its seconds for a token may be changed."""
    seconds, layers = {-1: 0.002, 0: 0.001, 3: 0.003}, []

    def load(path, placement, interrupt, *_, **__):
        if path == DRAFT:
            layers.append(placement.layers)
        return Model(path, Placement(0), interrupt)

    monkeypatch.setattr(library, "supports_gpu", lambda: True)
    for module in (weights, model_loading):
        monkeypatch.setattr(module, "load_model", load)
    monkeypatch.setattr(pass_probes, "pass_seconds", lambda *_, **__: {1: seconds[layers[-1]], 4: 1.0})
    return seconds, layers


def test_the_draft_is_placed_where_it_is_faster_anew_each_time(beside_a_gpu, opened):
    seconds, layers = beside_a_gpu
    for on_gpu, best in ((0.002, 0), (0.0005, -1)):
        seconds[-1] = on_gpu
        layers.clear()
        found = tuned()
        assert found["placement_tried"] == {"GPU": on_gpu, "CPU": 0.001} and found["gpu_layers_draft"] == best
        opened()
        assert layers == [-1, 0, best, best]


# --- what is refused ---


def test_what_tune_does_not_take(monkeypatch):
    monkeypatch.setattr(library, "supports_gpu", lambda: False)
    for code, says, *flags in (
        (2, "-k", "-k", 3),
        (2, "-n", "-n", 8),
        (2, "a prompt", "a prompt"),
        (2, "what-if", "--what-if"),
        (2, "drafter", "--drafter", "none"),
        (2, "measures nothing", "--what-if", "h200", "--prompts", "chat"),
        (2, "measures nothing", "--what-if", "h200", "--seconds", 5),
        (2, "--seconds can't be", "--seconds", 0.5),
        (2, "--seconds can't be", "--seconds", "nan"),
        (2, "temperature", "--temp", "nan"),
        (2, "-md", "-m", TARGET),
        (2, "rejection or match", "--accept", "typical", "--temp", 0.8),
        (2, "'python'", "--prompts", "pyhton"),
        (1, "1,000,000,000 tokens", "-c", 10**9),
    ):
        assert_refused(tune(*flags), code, says)
    for how in ((), ("--what-if", "h200")):
        heads = tune("-m", TARGET, "-md", TARGET.with_name("eagle3.gguf"), *how, SPECDEC_DRAFTER="ngram+eagle3")
        assert_refused(heads, 3, "tune can't measure heads", "run and compare")
    configure("drafter: none\n")
    assert_refused(tune(), 2, "nothing to tune")


def test_prompts_that_are_too_long_or_too_few(tmp_path, timed):
    path = tmp_path / "prompts.txt"
    path.write_text("def f(x): return x " * 80 + "\n")
    assert_refused(tune("--prompts", path, "-c", 256), 1, "too long", "-c")
    path.write_text("class Stack:\\n    def __init__(self):\n")
    assert_refused(tune("--prompts", path, "--seconds", 1, "-c", 256), 1, "too few tokens", "--prompts")
    assert not tuning.path_of(TARGET, DRAFT).exists()


# --- on other machines ---


def keep_recording(target=TARGET, draft=DRAFT):
    recordings.write(tuning.path_of(target, draft).with_suffix(".greedy.json.gz"), recording())


def test_what_if():
    """Of machines that come with specdec, and of the user's own."""
    keep_recording()
    folder = profiles.config_dir() / "hardware"
    folder.mkdir()
    for name, draft in (("quick", 1), ("slow", 500)):
        (folder / f"{name}.yaml").write_text(
            f"basis: measured\nverify_ms: {{1: 20, 17: 22}}\ndraft_ms: {{1: {draft}}}\n"
        )
    result = {name: told("tune", "--what-if", name) for name in ("h200", "quick", "slow")}
    assert all(f" on {name}" in found["verdict"][0] for name, found in result.items())
    assert not tuning.path_of(TARGET, DRAFT).exists(), "nothing is measured"
    quick, slow = (result[name]["predictions"][0] for name in ("quick", "slow"))
    assert quick["alone_tokens_per_s"] == slow["alone_tokens_per_s"] == 50.0
    assert quick["auto"] > 1.5 and quick["best_k"] > 0 and slow["best_k"] == 0


def test_a_recording_of_other_models_or_a_damaged_one_is_refused():
    keep_recording()
    path = recording_of(TARGET, DRAFT, "greedy")
    recordings.write(path, replace(recording(), about=recordings.identity(TARGET, DRAFT) | {"draft_bytes": 5}))
    assert_refused(tune("--what-if", "h200"), 1, "another draft", "5 bytes", "Run specdec tune")
    path.write_bytes(b"PK")
    assert_refused(tune("--what-if", "h200"), 1, "greedy.json.gz", "ecord")


def test_hardware_that_is_not_known():
    """No name as well, as from an unset variable in a script: not a minute of measuring instead."""
    for name, hint in (("rtx-490", "'rtx-4090'"), ("../hardware/h200", "h200"), ("", "h200")):
        assert_refused(tune("--what-if", name), 2, "no hardware", name, hint)


def test_a_pair_without_a_recording(tmp_path):
    """The bundled pair under other names, elsewhere."""
    big, small = tmp_path / "big.gguf", tmp_path / "small.gguf"
    big.symlink_to(TARGET)
    small.symlink_to(DRAFT)
    asked = ("--what-if", "h200", "-m", big, "-md", small)
    assert_refused(tune(*asked), 1, "has no recording", "temperature 0", "specdec tune")
    keep_recording(big, small)
    assert told("tune", *asked)["recorded_tokens"] == 120
    assert_refused(tune(*asked, "--temp", 0.5), 1, "--accept rejection", "--temp")


# --- Ctrl-C ---


def test_interrupted(timed, monkeypatch):
    """The answer that is being recorded is given up."""
    record = tuner.Tuner.record
    monkeypatch.setattr(tuner.Tuner, "record", lambda self: (signal.raise_signal(signal.SIGINT), record(self))[1])
    done = tune("--seconds", 2)
    assert (done.exit_code, done.stdout) == (130, "") and "nothing was saved" in done.stderr
    assert not list((profiles.config_dir() / "tuned").glob("*"))
