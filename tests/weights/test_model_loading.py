"""A file that llama.cpp does not survive ends a child, once, and not the process; a known file has no trial."""

import signal
import threading

import ggufs
import pytest
import tiny
from driver import assert_refused, run
from engines import open_session
from faulty_drafters import raising

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import kernels, trial_child, trial_process
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.weights import model_loading
from specdec_cli.weights.model_loading import TRIALS, begin_trial, load_model

pytestmark = pytest.mark.usefixtures("nothing_known", "own_trials")


@pytest.fixture
def deadly(tmp_path):
    """A model with a tensor table and a header that fit, and a number that llama.cpp asserts something of."""
    whole = tiny.write(tmp_path / "whole.gguf", "olmo2-window")
    return ggufs.with_keys(whole, tmp_path / "deadly.gguf", ggufs.scalar("olmo2.rope.dimension_count", ggufs.U32, 4))


@pytest.fixture
def children(monkeypatch, started):
    """Those started; what this process knows of other files is forgotten."""
    monkeypatch.setattr(model_loading, "_known", {})
    return started


def load(path):
    load_model(path, Placement(0), Interrupt()).close()


def test_a_deadly_file_is_an_error_and_is_known_from_then_on(deadly, children):
    for _ in range(2):
        with pytest.raises(SpecdecError, match=r"crashes on deadly.gguf: GGML_ASSERT\(.*n_rot.*olmo2.cpp") as told:
            load(deadly)
        assert "download it again" in told.value.hint and "/" not in str(told.value)
        model_loading._known.clear()  # as in another process
    assert [child.returncode for child in children] == [-signal.SIGABRT]


def test_a_trial_has_time_for_the_slowest_weights(monkeypatch, tmp_path):
    """7 billion weights of IQ1_S take a core of an EPYC 12 s for the trial's tokens."""
    asked = []
    monkeypatch.setattr(
        trial_process, "Child", lambda arguments, wait_s, environment: asked.append((arguments, wait_s))
    )
    trial_process.begin_load(tmp_path / "m.gguf", 1_400_000_000)
    ((arguments, wait_s),) = asked
    assert int(arguments[2]) > 4 * 12 and wait_s > 4 * 12


def test_a_file_is_tried_once_until_it_or_llama_cpp_changes(tmp_path, children, monkeypatch):
    path = tiny.write(tmp_path / "m.gguf", "llama")
    load(path)
    load(path)
    model_loading._known.clear()
    load(path)
    assert len(children) == 1
    path.write_bytes(path.read_bytes())
    load(path)
    assert len(children) == 2
    monkeypatch.setattr(kernels, "build", lambda: "another")
    load(path)
    assert len(children) == 3
    for kept in TRIALS.folder().iterdir():
        kept.write_text("{")
    model_loading._known.clear()
    load(path)
    assert len(children) == 4, "a damaged record"


def test_a_trial_runs_beside_other_work_and_by_one_at_a_time(tmp_path, children):
    path = tiny.write(tmp_path / "m.gguf", "llama")
    assert begin_trial(path) and begin_trial(path)
    assert not begin_trial(tmp_path / "none.gguf"), "its reader tells"
    threads = [threading.Thread(target=load, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(children) == 1 and not begin_trial(path)


@pytest.mark.parametrize("kind", [*tiny.RECURRENT, *tiny.HYBRID])
def test_what_is_too_large_is_tried_without_its_weights(tmp_path, children, monkeypatch, kind):
    monkeypatch.setattr(trial_process, "_MAX_BYTES", 1000)
    load(tiny.write(tmp_path / "m.gguf", kind))
    assert [(child.returncode, child.args[-2]) for child in children] == [(0, "")]


def test_a_trial_without_end(tmp_path, children, monkeypatch):
    path = tiny.write(tmp_path / "m.gguf", "llama")
    monkeypatch.setattr(trial_process, "SCRIPT", str(tmp_path / "endless.py"))
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(trial_process, "_WAIT_S", 0.1)
    with pytest.raises(SpecdecError, match="did not finish within its limits"):
        load(path)
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        load_model(path, Placement(0), interrupt)
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2
    assert not list(TRIALS.folder().glob("*")), "nothing is kept of it"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGALRM"])
def test_a_trial_that_was_ended_from_outside_says_nothing_about_the_file(tmp_path, monkeypatch, name):
    script = tmp_path / "ended.py"
    script.write_text(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    monkeypatch.setattr(trial_process, "SCRIPT", str(script))
    with pytest.raises(SpecdecError, match="did not finish within its limits"):
        load(tiny.write(tmp_path / "m.gguf", "llama"))
    assert not list(TRIALS.folder().glob("*"))


def test_heads_are_tried_without_repacked_weights(monkeypatch):
    """Those are in memory that a trial has little of."""
    repacked = []
    monkeypatch.setattr("specdec_cli.llama.model.Model", lambda *_, repacks=True, **__: repacked.append(repacks))
    monkeypatch.setattr(LlamaContext, "open", raising(SpecdecError("no room", "")))
    trial_child.try_heads("target.gguf", "heads.gguf")
    assert repacked == [False, False]


def test_what_was_loaded_is_freed_if_loading_is_interrupted(monkeypatch):
    loaded = []

    def interrupted(*given, **named):
        if loaded:
            raise Interrupted
        loaded.append(load_model(*given, **named))
        return loaded[0]

    monkeypatch.setattr("specdec_cli.weights.weights.load_model", interrupted)
    with pytest.raises(Interrupted):
        open_session()
    assert loaded[0].handle is None


def test_on_the_command_line(deadly):
    assert_refused(run("def f(", "-m", deadly, "--drafter", "none"), 1, "crashes on deadly.gguf: GGML_ASSERT")
    small = tiny.write(deadly.with_name("target.gguf"), "llama")
    done = run("def f(", "-m", small, "-md", deadly, "-n", 4, "--raw")
    assert done.exit_code == 0 and "draft model is not used: llama.cpp crashes on deadly.gguf" in done.stderr


def test_a_name_that_is_a_whole_command(tmp_path, children):
    """A path goes to the child as one word."""
    load(tiny.write(tmp_path / "a b;$(touch x) 'é\n.gguf", "llama"))
    assert children[0].returncode == 0 and not (tmp_path / "x").exists()
