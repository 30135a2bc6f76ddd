"""Kept costs come back for the same file, threads, layers, machine and build, and for no other."""

from dataclasses import replace

import pytest

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.weights import pass_costs as kept_costs
from specdec_cli.weights.pass_costs import KeptCosts, Place

HERE = Place("a machine; 2 cores", "llama.cpp 1; AVX", 2, -1)
COSTS = KeptCosts({1: 0.05, 4: 0.16}, {1: 0.02}, Agreement(1, 3, 2, (96, 320), {4: 0.4}))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_what_is_kept_comes_back(model):
    assert kept_costs.load_kept(model, HERE) is None
    kept_costs.save_kept(model, HERE, COSTS)
    assert kept_costs.load_kept(model, HERE) == COSTS
    kept_costs.save_kept(model, HERE, KeptCosts({1: 0.04}))
    assert kept_costs.load_kept(model, HERE) == KeptCosts({1: 0.04})


@pytest.mark.parametrize("change", [{"threads": 1}, {"gpu_layers": 0}, None], ids=str)
def test_other_threads_or_layers_or_another_file_have_other_costs(model, change):
    kept_costs.save_kept(model, HERE, COSTS)
    if change is None:
        model.write_bytes(b"GGUF, but longer")
    assert kept_costs.load_kept(model, replace(HERE, **(change or {}))) is None


@pytest.mark.parametrize("what", ["machine", "build"])
def test_another_machine_or_build_is_named(model, what):
    kept_costs.save_kept(model, HERE, COSTS)
    with pytest.raises(SpecdecError, match=f"from another {what}") as found:
        kept_costs.load_kept(model, replace(HERE, **{what: "another"}))
    assert "Remove" in found.value.hint
