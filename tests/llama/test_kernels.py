"""What is known of a build's kernels: asked of a child once for each kind of weights, and kept."""

import json
import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama import building, kernels, trial_child
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.trial_process import SCRIPT, Child

MORE = 39
HANG = f"{kernels._HANG} within 10 s"


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """Trials that fail as a test says, by whether they use the extra buffers and the types; those asked for."""
    asked, fails = [], {}

    def fault(types, extra_buffers):
        asked.append((extra_buffers, sorted(types)))
        return fails.get((extra_buffers, MORE in types), "")

    monkeypatch.delenv("SPECDEC_REPACK", raising=False)
    monkeypatch.setattr(kernels, "_known", {})
    monkeypatch.setattr(kernels, "_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(kernels, "_fault", fault)
    return asked, fails


def forget():
    """As in another process."""
    kernels._known.clear()


def test_a_build_is_tried_once(trials, monkeypatch):
    asked, _ = trials
    for _ in range(3):
        assert kernels.verdict() == kernels.TriedKernels(True) and kernels.verdict({0, 8, 12}).extra_buffers
        forget()
    assert asked == [(True, sorted(kernels.USUAL))]
    monkeypatch.setattr(building, "processor", lambda: "another")
    kernels.verdict()
    forget()
    monkeypatch.setattr(kernels, "build", lambda: "another")
    kernels.verdict()
    assert len(asked) == 3


def test_other_types_are_tried_when_a_model_has_them(trials):
    asked, fails = trials
    fails[(True, True)] = "SIGSEGV"
    assert kernels.verdict().extra_buffers and not kernels.verdict({8, MORE}).extra_buffers
    assert asked[1:] == [(True, [MORE]), (False, [MORE])]
    forget()
    assert kernels.verdict({MORE}).fault == "SIGSEGV" and len(asked) == 3, "kept"
    assert kernels.verdict().extra_buffers, "for other models"


def test_what_fails_in_any_case_is_refused_with_the_command_that_repairs_it(trials, tmp_path, monkeypatch):
    asked, fails = trials
    monkeypatch.setattr(kernels, "_libraries", lambda: tmp_path)
    (tmp_path / "libggml-vulkan.so").touch()
    fails[(True, False)], fails[(False, False)] = "SIGILL", "SIGILL"
    with pytest.raises(SpecdecError, match="does not work on this processor: SIGILL") as refused:
        kernels.verdict()
    assert refused.value.hint.endswith(building.command("vulkan")) and len(asked) == 2, "built for the same GPUs"
    fails.clear()
    assert kernels.try_again() == kernels.TriedKernels(True)
    forget()
    assert kernels.verdict().extra_buffers, "what was found out last is kept"


def test_a_missing_library_is_not_blamed_on_the_processor(trials):
    _, fails = trials
    fails[(True, False)] = fails[(False, False)] = "Shared library with base name 'llama' not found"
    with pytest.raises(SpecdecError, match="because a library is missing: Shared library") as refused:
        kernels.verdict()
    assert "processor" not in str(refused.value) + refused.value.hint


def test_the_user_can_do_without_repacking(trials, monkeypatch):
    monkeypatch.setenv("SPECDEC_REPACK", "0")
    assert not kernels.verdict().extra_buffers and not kernels.verdict().fault


def test_a_damaged_record_is_tried_again(trials):
    asked, _ = trials
    kernels.verdict()
    (path,) = kernels._folder().iterdir()
    path.write_text('{"format": 1, "extra_buffers": 3}')
    forget()
    assert kernels.verdict().extra_buffers and len(asked) == 2
    assert json.loads(path.read_text())["extra_buffers"] is True


@pytest.mark.parametrize(
    ("fast", "slow", "found"),
    [(None, "", True), ("SIGSEGV", None, True), (HANG, "", False), ("SIGSEGV", HANG, "did not finish")],
)
def test_what_cannot_be_tried_is_taken_to_work_and_no_more_kept_than_a_hang(trials, fast, slow, found):
    """A full disk, a system that ends processes because memory is short; threads that wait for each other."""
    asked, fails = trials
    fails[(True, False)], fails[(False, False)] = fast, slow
    with pytest.raises(SpecdecError, match=found) if isinstance(found, str) else nullcontext():
        assert kernels.verdict().extra_buffers == found
    assert not kernels._folder().exists()
    forget()
    fails.clear()
    asked.clear()
    assert kernels.verdict().extra_buffers and kernels._folder().exists() and len(asked) == 1


def test_a_hang_is_tried_again_with_one_thread(monkeypatch):
    """On a busy machine several threads may wait for each other for longer than a trial may take."""
    counts = []

    def hanging(arguments, *_):
        counts.append(int(arguments[4]))
        hangs = arguments[4] != "1" or arguments[5] == "extra"
        return SimpleNamespace(timed_out=hangs, wait=lambda: -9 if hangs else 0, stop=lambda: None)

    monkeypatch.setattr(kernels, "Child", hanging)
    monkeypatch.setattr(kernels.host, "physical_cores", lambda: 4)
    monkeypatch.delenv("SPECDEC_THREADS")
    assert "did not finish" in kernels._fault(kernels.USUAL, extra_buffers=True) and counts == [4, 1]
    assert kernels._fault(kernels.USUAL, extra_buffers=False) == ""


@pytest.mark.parametrize(
    ("code", "fault"), [(0, ""), (-11, "SIGSEGV"), (-9, None), (2, None), (1, "wrong"), (99, "code 99")]
)
def test_how_a_trial_ended(code, fault):
    assert kernels._fault_of(code, SimpleNamespace(output=lambda: b"wrong\n")) == fault


def rows_of(path, widths, extra_buffers=True):
    text = np.random.default_rng(1).integers(0, 512, 17).tolist()
    return trial_child._rows(lib, np, path, text, 1, widths, extra_buffers)


@pytest.fixture
def model(tmp_path):
    weights, base = trial_child._weights(np), trial_child._ggml(lib)

    def write(kind, **changes):
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(trial_child._gguf(np, base, weights | changes, kind))
        return path

    return write, weights


def test_the_trial_sees_what_rounding_does_not_do(model):
    """Rounding stays far below the bound, and a slip in one of nine matrices far above it."""
    write, weights = model
    own = rows_of(write(12), (1,), extra_buffers=False)[1]

    def distance(rows):
        return np.sqrt(np.mean((rows - own[: len(rows)]) ** 2)) / own[: len(rows)].std()

    widths = (1, 2, 5, 16, 17)
    assert max(map(distance, rows_of(write(12), widths).values())) < trial_child.MAX_DISTANCE / 3
    slipped = {"blk.0.ffn_down": np.roll(weights["blk.0.ffn_down"], 32, axis=1)}
    assert min(map(distance, rows_of(write(12, **slipped), widths).values())) > 2 * trial_child.MAX_DISTANCE


@pytest.mark.slow
def test_every_type_of_weights_can_be_tried(tmp_path):
    from specdec_cli.gguf.header import TYPES

    kinds = sorted(set(TYPES) - kernels.UNTRIED - {9, 15})  # the last two are of activations
    for kind in kinds:
        child = Child([SCRIPT, "kernels", str(os.getpid()), str(tmp_path), "1", "extra", str(kind)], 60)
        try:
            assert child.wait() == 0, (TYPES[kind], child.output(), child.last_words())
        finally:
            child.stop()
