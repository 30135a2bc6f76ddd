"""What is known of a model's passes: read once, corrected by what runs show, kept when there is news."""

import pytest
from driver import TARGET

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.engine import pass_cost_records as kept_costs
from specdec_cli.engine import pass_costs as costing
from specdec_cli.engine.pass_costs import PassCosts

pytestmark = pytest.mark.usefixtures("nothing_known")
PASSES = {1: 0.02, 2: 0.03, 4: 0.05}


class Context:
    threads, n_ctx, n_vocab, rewinds = 1, 4096, 4096, True

    def rewind(self, length):
        pass


@pytest.fixture
def opened(monkeypatch):
    """Opens the costs anew, with what was timed and noted so far."""
    timed, notes = [], []
    monkeypatch.setattr(costing, "pass_seconds", lambda *_, **__: timed.append(1) or dict(PASSES))

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
    again.learn({1: 0.0205, 2: 0.06, 9: 0.1})
    again.keep()
    monkeypatch.setattr(kept_costs, "save", None)  # what is no news is not written
    last = opened()
    assert last.verify([1]).points == {1: 0.02, 2: 0.06, 4: 0.05, 9: 0.1}
    last.learn({1: 0.0201})
    last.keep()


def test_after_a_change_of_threads_each_number_keeps_its_own(opened, monkeypatch):
    found = opened()
    found.verify([1])
    monkeypatch.setattr(Context, "threads", 2)
    found.follow_threads()
    assert found.verify([1]).points == PASSES and len(found.timed) == 2
    found.learn({1: 0.1})
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
    monkeypatch.setattr(costing.agreement, "measure", lambda *_: agreed)
    first = opened()
    first.agree([1])
    first.keep()
    assert opened().agreement == (agreed if known else None)


@pytest.mark.parametrize(
    ("agreed", "timed", "says"),
    [((1, 3, 1, {}), True, []), ((2, 3, 2, {}), False, ["unlike all others here; with -t 1"]),
     ((2, 3, 2, {}), True, ["takes 1.50 times as long"]), ((1, 1, 1, {2: 0.1}), True, ["gain nothing"])],
)  # fmt: skip
def test_bitwise_says_what_it_costs(opened, monkeypatch, agreed, timed, says):
    monkeypatch.setattr(costing.agreement, "measure", lambda *_: Agreement(*agreed[:3], (96,), agreed[3]))
    found = opened()
    if timed:
        found.verify([1])
    found.agree([1])
    assert len(found.notes) == len(says) and all(part in note for part, note in zip(says, found.notes, strict=True))


def test_a_cost_model_tells_what_it_has_seen_often():
    model = CostModel(Costs(Curve(PASSES), Curve({1: 0.01})), 8)
    for index in range(40):
        model.observe(Step(index, (), (0, 0, 0), 0, (), "", 0.0, 0.1, 0.0, index), 1, 1)
    assert model.learned() == {4: pytest.approx(0.1, rel=0.1)}
