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


def chosen_devices(names: Sequence[str]) -> list[str]:
    """The devices that are to be served, by default all GPUs, or else the CPU. Raises UsageError on unknown ones."""
    known = {device.name.lower(): device.name for device in library.devices()}
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"there is no device {name!r}", f"Devices here: {', '.join(known.values())}.")
    gpus = [device.name for device in library.devices() if device.is_gpu]
    return [known[name.lower()] for name in names] or gpus or ["CPU"]


def serve(host: str, port: int, threads: int, devices: Sequence[str], interrupt: Interrupt) -> None:
    """Serve these devices until `interrupt` is set. One client at a time; others wait until it leaves.

    What llama.cpp prints on its own is left out. Raises SpecdecError if the address cannot be had, or this build
    knows no RPC.
    """
    require_build()
    fix = "Give a numeric address of this machine, and a port that is free."
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise SpecdecError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}", fix) from None
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    server = Thread(target=library.serve_rpc, args=(f"{host}:{port}", threads, devices), daemon=True)
    server.start()
    while server.is_alive() and not interrupt.is_set():
        server.join(interrupt.POLL_S)
    if not interrupt.is_set():
        raise SpecdecError(f"llama.cpp cannot serve on {host}:{port}", fix)
