"""What is known of a model's passes: read once, corrected by what runs show, kept when there is news."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from driver import TARGET

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.weights import pass_costs as costing
from specdec_cli.weights.pass_costs import PassCosts, SavedCosts, TimingKey

pytestmark = pytest.mark.usefixtures("nothing_known")
PASSES = {1: 0.02, 2: 0.03, 4: 0.05}


class Context:
    threads, n_ctx, n_vocab, rewinds = 1, 4096, 4096, True
    passes = SimpleNamespace(model=SimpleNamespace(on_gpu=False))

    def rewind(self, length):
        pass


@pytest.fixture
def opened(monkeypatch):
    """Opens the costs anew, with what was timed and noted so far."""
    timed, notes = [], []
    monkeypatch.setattr(costing, "pass_seconds", lambda *given, **_: timed.append(given) or dict(PASSES))

    def make():
        costs = PassCosts(TARGET, Context(), -1, notes.append)
        costs.timed, costs.notes = timed, notes
        return costs

    return make


def test_what_was_measured_is_kept_and_corrected_by_what_runs_show(opened, monkeypatch):
    first = opened()
    assert first.verify([1]).points == PASSES and first.draft([1]).points == PASSES
    first.keep()
    again = opened()
    assert again.verify([1]).points == PASSES and again.draft([1]).points == PASSES
    assert len(again.timed) == 2 and again.notes == [] and again.measured_s == 0
    again.learn("target", {1: 0.0205, 2: 0.06, 9: 0.1})
    again.learn("draft", {1: 0.03})
    again.keep()
    monkeypatch.setattr(costing, "save", None)  # what is no news is not written
    last = opened()
    assert last.verify([1]).points == {1: 0.02, 2: 0.06, 4: 0.05, 9: 0.1}
    assert last.draft([1]).points == {**PASSES, 1: 0.03}
    last.learn("target", {1: 0.0201})
    last.keep()


@pytest.mark.parametrize(
    "kept", [{1: 0.02, 2: 0.265, 4: 0.5}, {2: 0.03, 4: 0.05}], ids=["of a busy machine", "without single tokens"]
)
def test_costs_that_cannot_be_right_are_measured_again(opened, kept):
    first = opened()
    first._add(verify=kept)
    first.keep()
    again = opened()
    assert again.verify([1]).points == PASSES
    again.keep()
    last = opened()
    assert last.verify([1]).points == PASSES and len(last.timed) == 1


def test_a_draft_model_on_a_gpu_reads_singly_what_plans_would_make_dearer(opened, monkeypatch):
    assert not opened().singly
    monkeypatch.setattr(Context.passes.model, "on_gpu", True)
    assert opened().singly, "most draft models are small"
    for two, singly in ((0.026, False), (0.04, True)):
        costs = opened()
        costs._add(draft={1: 0.02, 2: two})
        assert costs.singly is singly
    assert CostModel(Costs(Curve({1: 1.0}), Curve({1: 0.2, 2: 0.5}), singly=True), 8).draft(2) == 0.4


def test_repeated_passes_are_timed_where_a_gpu_replays_them(opened, monkeypatch):
    assert opened().repeated([1], 0.004) is None
    monkeypatch.setattr(Context.passes.model, "on_gpu", True)
    first = opened()
    assert first.repeated([1], 0.02) is None and first.timed == [], "planning is a small part of a long pass"
    assert first.repeated([1], 0.02 / 5).points == pytest.approx({n: s / 5 for n, s in PASSES.items()})
    assert first.timed[0][-1] is True and first.timed[0][2][0] == 1
    first.keep()
    again = opened()
    assert again.repeated([1], 0.01).points[2] == pytest.approx(0.015) and len(again.timed) == 1, (
        "passes take longer now"
    )


def test_after_a_change_of_threads_each_number_keeps_its_own(opened, monkeypatch):
    found = opened()
    found.verify([1])
    monkeypatch.setattr(Context, "threads", 2)
    found.follow_threads()
    assert found.verify([1]).points == PASSES and len(found.timed) == 2
    found.learn("target", {1: 0.1})
    found.keep()
    assert opened().verify([1]).points[1] == 0.1
    monkeypatch.setattr(Context, "threads", 1)
    found.follow_threads()
    assert found.verify([1]).points == PASSES and opened().verify([1]).points == PASSES and len(found.timed) == 2


@pytest.mark.parametrize(
    ("contexts", "n_ctx", "known"), [((96, 320), 4096, True), ((96,), 256, True), ((96,), 4096, False)]
)
def test_agreement_is_known_for_contexts_as_long_as_were_measured(opened, monkeypatch, contexts, n_ctx, known):
    monkeypatch.setattr(Context, "n_ctx", n_ctx)
    agreed = Agreement(1, 3, 1, contexts, {4: 0.4})
    monkeypatch.setattr(costing, "measure_agreement", lambda *_: agreed)
    first = opened()
    first.measure_agreement([1])
    first.keep()
    assert opened().agreement == (agreed if known else None)


def test_costs_are_those_of_one_file_threads_layers_machine_and_build(tmp_path):
    model, here = tmp_path / "model.gguf", TimingKey("a machine; 2 cores", "llama.cpp 1; AVX", 2, -1)
    model.write_bytes(b"GGUF")
    costing.save(model, here, SavedCosts(PASSES))
    assert costing.load_saved(model, here) == SavedCosts(PASSES)
    changes = {"machine": "another", "build": "another", "threads": 1, "gpu_layers": 0, "setup": "a GPU"}
    for name, value in changes.items():
        there = replace(here, **{name: value})
        assert costing.load_saved(model, there) is None
        costing.save(model, there, SavedCosts())
    assert costing.load_saved(model, here) == SavedCosts(PASSES), "as in a home directory that machines share"
    model.write_bytes(b"GGUF, but longer")
    assert costing.load_saved(model, here) is None


def test_a_new_build_with_the_same_version_and_flags_is_another(monkeypatch):
    before = costing.timing_key(1)
    assert costing.timing_key(1) == before != costing.timing_key(2)
    monkeypatch.setattr(costing.kernels, "build", lambda: "libllama.so/1/2")
    assert costing.timing_key(1) != before
