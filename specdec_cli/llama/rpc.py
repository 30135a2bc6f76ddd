"""llama.cpp's RPC backend: connects to servers, whose devices take a model's layers, and serves this machine's devices.

By that backend's design, the traffic is neither authenticated nor encrypted.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import struct
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address
from threading import Thread

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.llama import library, undeclared
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.remote_calls import PATIENCE_S, RemoteCalls

_CONNECT_S = 3.0
_HELLO, _DEVICE_COUNT = 14, 15
_CAPABILITIES, _HELLO_BYTES = 24, 28
"""Commands of ggml's protocol since its version 4, and bytes of a greeting and of the answer."""
_MAX_DEVICES = 256
_connected: dict[str, list[int]] = {}
_FIX = "Use an address of this machine and a free port."


def require_build() -> None:
    """Raise SpecdecError if llama.cpp was built without RPC."""
    if not library.knows_rpc():
        what, fix = "this build of llama.cpp has no RPC", "Build it with -DGGML_RPC=ON, as `make setup` does."
        raise SpecdecError(what, fix)


@functools.cache
def calls() -> RemoteCalls:
    """The process's thread for calls that involve servers."""
    return RemoteCalls()


def connect(servers: Sequence[str], insecure: bool = False) -> list[int]:
    """Connect to servers until the process ends. Returns llama.cpp's handles of their devices.

    Raises UsageError for an address that isn't private, SpecdecError if a server doesn't answer, or llama.cpp was built
    without RPC.
    """
    require_build()
    for server in servers:
        if server not in _connected:
            calls().add(server)
            address = _reach(server, insecure)
            devices = calls().call(_devices_at, address)
            if not devices:  # llama.cpp could not connect, or the server has none
                why = library.last_error() or "it has no devices"
                raise SpecdecError(f"cannot use the server {server}: {why}", "Check its output, and restart it.")
            _connected[server] = devices
    return [device for server in servers for device in _connected[server]]


def _devices_at(address: str) -> list[int]:
    """llama.cpp's handles of a server's devices; none if it can't connect. Only for `RemoteCalls`."""
    if not (server := undeclared.call("ggml_backend_rpc_add_server", address.encode())):
        return []
    count = undeclared.call("ggml_backend_reg_dev_count", server)
    devices = [undeclared.call("ggml_backend_reg_dev_get", server, i) for i in range(count)]
    for device in devices:
        undeclared.call("ggml_backend_dev_init", device, None)
    return devices


def _reach(server: str, insecure: bool) -> str:
    """The numeric address of a server that accepts connections."""
    host, _, port = server.rpartition(":")
    fix = "Start specdec rpc-server or llama.cpp's rpc-server there, and check the port and the firewall."
    try:
        address = str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        if IPv4Address(address).is_global and not insecure:
            raise UsageError(
                f"{address} is outside private networks, and this protocol has no password and no encryption",
                "Use a VPN or an SSH tunnel, or --rpc-insecure to connect anyway.",
            )
        with socket.create_connection((address, int(port)), _CONNECT_S) as connection:
            count = _claimed_devices(connection)
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
        reason = "no answer" if isinstance(error, TimeoutError) else _reason(error)
        raise SpecdecError(f"there is no server at {server}: {reason}", fix) from None
    if count > _MAX_DEVICES:
        raise SpecdecError(f"the server {server} claims {count:,} devices", "Check its output, and restart it.")
    return f"{address}:{port}"


def _claimed_devices(connection: socket.socket) -> int:
    """How many devices a server claims to have; 0 if the answer isn't the expected one: ggml then reports the error.

    ggml allocates memory for every device that a server claims, so the count is checked first. All other replies have a
    fixed size.
    """
    connection.settimeout(PATIENCE_S)
    greeted, count = False, b""
    try:
        with connection.makefile("rwb") as stream:
            for command, request, size in ((_HELLO, bytes(_CAPABILITIES), _HELLO_BYTES), (_DEVICE_COUNT, b"", 4)):
                stream.write(struct.pack("<BQ", command, len(request)) + request)
                stream.flush()
                if stream.read(8) != struct.pack("<Q", size) or len(count := stream.read(size)) < size:
                    return 0
                greeted = True
    except TimeoutError:
        if not greeted:
            raise calls().silent(PATIENCE_S) from None
        return 0  # it may speak another version
    except OSError:
        return 0
    return int.from_bytes(count, "little")


def chosen_devices(names: Sequence[str]) -> list[str]:
    """The devices to serve: by default all GPUs, or else the CPU. Raises UsageError for unknown ones."""
    known = {device.name.lower(): device.name for device in library.devices()}
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"there is no device {name!r}", f"Devices here: {', '.join(known.values())}.")
    gpus = [device.name for device in library.devices() if device.is_gpu]
    return [known[name.lower()] for name in names] or gpus or ["CPU"]


def free_address(host: str, port: int) -> str:
    """The numeric address of a host name, if the port is free there. Raises SpecdecError if not, or without RPC."""
    require_build()
    try:
        address = socket.gethostbyname(host)
        with socket.create_server((address, port)):
            return address
    except (OSError, UnicodeError) as error:
        raise SpecdecError(f"cannot listen on {host}:{port}: {_reason(error)}", _FIX) from None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def serve(host: str, port: int, threads: int, devices: Sequence[str], interrupt: Interrupt) -> None:
    """Serve these devices at a numeric address until `interrupt` is set, one client at a time; others wait. Suppresses
    llama.cpp's own output. Raises SpecdecError if llama.cpp can't serve there.
    """
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    handles = (ctypes.c_void_p * len(devices))(*map(library.device_handle, devices))
    arguments = "ggml_backend_rpc_start_server", f"{host}:{port}".encode(), None, threads, len(devices), handles
    server = Thread(target=undeclared.call, args=arguments, daemon=True)  # returns only if the address can't be used
    server.start()
    while server.is_alive() and not interrupt.is_set():
        server.join(interrupt.POLL_S)
    if not interrupt.is_set():
        raise SpecdecError(f"llama.cpp cannot serve on {host}:{port}", _FIX)
