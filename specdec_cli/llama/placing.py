"""Passes a placement to llama.cpp: names become devices, and a draft model goes to a single one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdec_cli.decoding.errors import UsageError
from specdec_cli.llama import library, rpc
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.placement import Device, Placement


def require_possible(placement: Placement) -> None:
    """Raise UsageError for unknown devices or a split that doesn't fit, SpecdecError if a server doesn't answer."""
    remote = rpc.connect(placement.servers, placement.insecure) if placement.is_remote else []
    if placement.devices is None and not placement.split:
        return
    known = [device.name for device in library.devices() if device.is_gpu]
    for name in placement.devices or ():
        if name.lower() not in map(str.lower, known):
            listed = f"Devices here: {', '.join([*known, 'none (the CPU)'])}; see specdec doctor."
            raise UsageError(f"there is no device {name!r}", listed)
    if placement.split:
        _require_split(len(placement.split), [*(f"RPC{i}" for i in range(len(remote))), *_local_devices(placement)])


def _require_split(parts: int, names: list[str]) -> None:
    most = lib.llama_max_devices()
    if len(names) < 2:
        there = f"there is only {names[0]}" if names else "there is none"
        raise UsageError(f"a tensor split needs several devices; {there}", "Leave out --tensor-split.")
    if parts != len(names) or parts > most:
        fix = f"Give one number for each of {', '.join(names)}; llama.cpp takes at most {most}."
        raise UsageError(f"the tensor split has {parts} parts for {len(names)} devices", fix)


def whole(placement: Placement) -> Placement:
    """A draft model's placement: the GPU with the most free memory, if there are several and none is named.

    Its passes are short, and each boundary between devices makes them longer.
    """
    if placement.devices is not None or not placement.on_devices or not library.supports_gpu():
        return placement
    gpus = default_devices()
    return replace(placement, devices=(max(gpus, key=lambda gpu: gpu.free).name,)) if len(gpus) > 1 else placement


def device_of(placement: Placement) -> str:
    """The device that holds a model, or the first of several; empty for the CPU."""
    if not placement.on_devices or not library.supports_gpu():
        return ""
    return _local_devices(whole(placement))[0]


def default_devices() -> list[Device]:
    """The devices that llama.cpp uses if none is named: integrated GPUs only if there is no other."""
    gpus = [device for device in library.devices() if device.is_gpu]
    return [device for device in gpus if device.kind == "GPU"] or gpus


def _local_devices(placement: Placement) -> Sequence[str]:
    """The names of this machine's devices in a placement."""
    return [device.name for device in default_devices()] if placement.devices is None else placement.devices


def fill(params: Any, placement: Placement) -> list[object]:
    """Write a placement into llama_model_params. Returns the arrays, which must live as long as the model."""
    params.n_gpu_layers = placement.layers
    arrays: list[object] = []
    if placement.is_remote or placement.devices is not None:
        remote = rpc.connect(placement.servers) if placement.is_remote else []
        handles = [*remote, *map(library.device_handle, _local_devices(placement))]
        devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        arrays.append(devices)
        if len(handles) == 1:
            params.split_mode, params.main_gpu = lib.LLAMA_SPLIT_MODE_NONE, 0
    if placement.split:
        shares = (ctypes.c_float * lib.llama_max_devices())(*placement.split)
        params.tensor_split = shares
        arrays.append(shares)
    return arrays
