"""A server of llama.cpp's RPC backend: this machine computes layers of other machines' models."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from threading import Thread

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.llama import library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.rpc_servers import require_build

_FIX = "Give an address of this machine, and a port that is free."


def chosen_devices(names: Sequence[str]) -> list[str]:
    """The devices that are to be served, by default all GPUs, or else the CPU. Raises UsageError on unknown ones."""
    known = {device.name.lower(): device.name for device in library.devices()}
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"there is no device {name!r}", f"Devices here: {', '.join(known.values())}.")
    gpus = [device.name for device in library.devices() if device.is_gpu]
    return [known[name.lower()] for name in names] or gpus or ["CPU"]


def free_address(host: str, port: int) -> str:
    """The numeric address of a host of this machine, if the port can be had there. Raises SpecdecError if it cannot be,
    or this build knows no RPC.
    """
    require_build()
    try:
        address = socket.gethostbyname(host)
        with socket.create_server((address, port)):
            return address
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecdecError(f"cannot listen on {host}:{port}: {reason}", _FIX) from None


def serve(host: str, port: int, threads: int, devices: Sequence[str], interrupt: Interrupt) -> None:
    """Serve these devices at a numeric address until `interrupt` is set. One client at a time; others wait until it
    leaves. What llama.cpp prints on its own is left out. Raises SpecdecError if llama.cpp cannot serve there.
    """
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    server = Thread(target=library.serve_rpc, args=(f"{host}:{port}", threads, devices), daemon=True)
    server.start()
    while server.is_alive() and not interrupt.is_set():
        server.join(interrupt.POLL_S)
    if not interrupt.is_set():
        raise SpecdecError(f"llama.cpp cannot serve on {host}:{port}", _FIX)
