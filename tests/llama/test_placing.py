"""Where a model lies: what is said of it, what llama.cpp is told, and what cannot be."""

import ctypes
import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest
from driver import TARGET, assert_refused, run, told
from engines import open_session

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.llama import host, library, placing
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Device, Placement
from specdec_cli.pairs.pair_check import FreeMemory
from specdec_cli.settings.settings import Settings

CPU = Device("CPU", "a processor", "CPU", 32 << 30, 64 << 30)
GPUS = [Device(f"CUDA{i}", "a GPU", "GPU", free << 30, 80 << 30) for i, free in enumerate((10, 40, 30))]
INTEGRATED = Device("Vulkan0", "a small GPU", "integrated GPU", 50 << 30, 64 << 30)
HANDLES = {device.name.lower(): 1000 + i for i, device in enumerate([*GPUS, INTEGRATED])}


def test_errors_are_kept_while_debugging_too(monkeypatch, capsys):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    library.recent_errors.clear()
    library._on_log(4, b"load: it broke\n", None)
    assert library.last_error() == "it broke" and capsys.readouterr().err == "load: it broke\n"


@pytest.fixture
def machine(monkeypatch):
    """A machine with other devices than this one."""

    def have(*devices):
        monkeypatch.setattr(library, "devices", lambda: [*devices, CPU])
        monkeypatch.setattr(library, "supports_gpu", lambda: bool(devices))
        monkeypatch.setattr(library, "device_handle", lambda name: HANDLES[name.lower()])

    return have


@pytest.fixture
def asked(monkeypatch):
    """What llama.cpp is asked to load: file, layers, devices, split mode, main GPU, split. It loads none of it."""
    calls = []

    def load(path, params):
        addresses = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
        devices = [*itertools.takewhile(bool, addresses)] if params.devices else None
        split = [params.tensor_split[i] for i in range(lib.llama_max_devices())] if params.tensor_split else None
        mode = (params.split_mode, params.main_gpu)
        calls.append((Path(path.decode()).name, params.n_gpu_layers, devices, mode, split))

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    return calls


LOAD = lib.llama_model_load_from_file
LAYERS, NONE = (lib.LLAMA_SPLIT_MODE_LAYER, 0), (lib.LLAMA_SPLIT_MODE_NONE, 0)


def test_what_is_said_of_a_placement():
    assert Placement.parse(-1) == Placement() and Placement().key == ""
    assert Placement.parse(5, "CUDA1, CUDA0", "3,1") == Placement(5, ("CUDA1", "CUDA0"), (3.0, 1.0))
    assert Placement.parse(-1, "none") == Placement.parse(-1, "CPU") == Placement(devices=())
    assert [Placement.parse(*case).on_devices for case in ((-1,), (0,), (3, "A"), (0, "A"), (-1, "none"))] == [
        *(True, False, True, False, False)
    ]
    cases = [("a", None), ("A,b", None), ("none", None), (None, "3,1"), (None, "1,3"), ("a,b", "3,1")]
    keys = [Placement.parse(-1, *case).key for case in cases]
    assert len({"", *keys}) == 7 and Placement.parse(-1, "CUDA0").key == Placement.parse(-1, "cuda0").key


NAMES = [("device", text) for text in ("", "A,,B", "A,a", "none,CUDA0")] + [("device_draft", "A,a")]
SHARES = [("tensor_split", text) for text in ("a", "1,", "0,0", "-1,2", "nan,1", "1,1e39")]


@pytest.mark.parametrize(("option", "text"), [*NAMES, *SHARES])
def test_what_is_no_placement(option, text):
    with pytest.raises(UsageError, match=r"(device|tensor split) cannot be"):
        Settings(**{option: text})


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement(), (-1, None, LAYERS, None)),
        (Placement(7, ("cuda2",)), (7, [1002], NONE, None)),
        (Placement(-1, ()), (-1, [], LAYERS, None)),
        (Placement(-1, ("CUDA1", "CUDA0"), (3, 1)), (-1, [1001, 1000], LAYERS, [3, 1, *[0] * 14])),
        (Placement(-1, None, (1, 0, 0.5)), (-1, None, LAYERS, [1, 0, 0.5, *[0] * 13])),
    ],
)
def test_llama_cpp_is_told_devices_and_shares(machine, asked, placement, expected):
    machine(*GPUS)
    placing.require_possible(placement)
    with pytest.raises(SpecdecError, match="cannot load"):
        Model(TARGET, placement, Interrupt())
    assert asked == [("target.gguf", *expected)]


@pytest.mark.parametrize(
    ("devices", "placement", "says"),
    [
        (GPUS, Placement.parse(-1, "CUDA0,CUDA7"), "no device 'CUDA7'"),
        ((), Placement.parse(-1, None, "3,1"), "needs several devices; there is none"),
        (GPUS, Placement.parse(-1, "CUDA1", "3,1"), "there is only CUDA1"),
        (GPUS, Placement.parse(-1, None, "3,1"), "2 parts for 3 devices"),
        ([replace(CPU, name=f"G{i}", kind="GPU") for i in range(17)], Placement.parse(-1, None, "1" + ",1" * 16), "17"),
        ([*GPUS[:1], INTEGRATED], Placement.parse(-1, None, "3,1"), "there is only CUDA0"),
    ],
)
def test_what_cannot_be(machine, devices, placement, says):
    machine(*devices)
    with pytest.raises(UsageError, match=says) as told_so:
        placing.require_possible(placement)
    if "no device" in says:
        assert all(name in told_so.value.hint for name in [*(device.name for device in devices), "none"])


@pytest.mark.parametrize(
    ("devices", "placement", "where"),
    [
        (GPUS[:1], Placement(), None),
        ([GPUS[0], INTEGRATED], Placement(), None),
        (GPUS, Placement(), ("CUDA1",)),
        (GPUS, Placement(0), None),
        (GPUS, Placement(devices=("CUDA0", "CUDA2")), ("CUDA0", "CUDA2")),
    ],
)
def test_a_draft_model_is_whole_unless_it_is_told_otherwise(machine, devices, placement, where):
    machine(*devices)
    assert placing.whole(placement) == replace(placement, devices=where)


@pytest.mark.parametrize("devices", [[GPUS[0], INTEGRATED], [INTEGRATED], GPUS, []])
def test_memory_is_free_on_the_devices_that_are_used(machine, devices, monkeypatch):
    """An integrated GPU's is a part of the main memory, and counts once."""
    machine(*devices)
    monkeypatch.setattr(host, "available_memory", lambda: 60 << 30)
    used = [device.free for device in devices if device != INTEGRATED] or [device.free for device in devices]
    assert FreeMemory.now().gpu == sum(used)
    assert FreeMemory.now().main == (10 if devices == [INTEGRATED] else 60) << 30


def test_a_pair_over_several_devices(machine, asked, monkeypatch, nothing_known):
    """The target is loaded for real, on the CPU: only then is the draft placed, by what memory it has left."""
    machine(*GPUS)
    noted = lib.llama_model_load_from_file

    def as_told(path, params):
        noted(path, params)
        machine(*GPUS[:1], replace(GPUS[1], free=0), GPUS[2])
        params.devices, params.tensor_split, params.split_mode = None, None, lib.LLAMA_SPLIT_MODE_LAYER
        return LOAD(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", as_told)
    with open_session(device="CUDA0,CUDA1", tensor_split="3,1", gpu_layers=5) as session:
        target, draft = session.models.target.loaded, session.models.draft.loaded
        assert target.offloaded and not target.model.offloaded and session.notes == ()
        assert draft.model.offloaded and draft.placement.devices == ("CUDA2",), "its costs are those of that GPU"
    target = ("target.gguf", 5, [1000, 1001], LAYERS, [3, 1, *[0] * 14])
    assert asked == [target, ("draft.gguf", -1, [1002], NONE, None)]
    asked.clear()
    with open_session(device="CUDA0", device_draft="none") as session:
        assert not session.models.draft.loaded.offloaded
        assert session.models.target.loaded.model.offloaded
    assert asked == [("target.gguf", -1, [1000], NONE, None), ("draft.gguf", -1, [], LAYERS, None)]
    with open_session(device="CUDA0", gpu_layers=99, drafter="none", draft=None) as session:
        assert session.models.target.loaded.model.offloaded, "these are all layers, too"


def test_the_cpu_by_name_decodes():
    """For real: llama.cpp gets an empty list of devices."""
    with closing(Model(TARGET, Placement(devices=()), Interrupt())) as model:
        assert not model.on_gpu
    flags = ("run", "def f(", "-n", 12)
    assert told(*flags, "--device", "none", "--device-draft", "cpu")["text"] == told(*flags)["text"]


def test_on_the_command_line():
    for flag in ("--device", "--device-draft"):
        assert_refused(run("x", flag, "CUDA9"), 2, "there is no device 'CUDA9'", "none (the CPU)")
    assert_refused(run("x", "--tensor-split", "3,1"), 2, "a tensor split needs several devices")
