"""Servers of llama.cpp's RPC backend: their addresses, and their devices as places for a model's layers.

What crosses the network is neither authenticated nor encrypted, by design of that backend.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.llama import library
from specdec_cli.llama.remote_calls import RemoteCalls

_CONNECT_S = 3.0
_connected: dict[str, list[int]] = {}


def require_build() -> None:
    """Raise SpecdecError if llama.cpp was built without RPC."""
    if not library.knows_rpc():
        what, fix = "this build of llama.cpp has no RPC", "Install it with -DGGML_RPC=ON; `make setup` does."
        raise SpecdecError(what, fix)


def require_private(address: str, insecure: bool) -> None:
    """Raise UsageError on an address of the open internet. insecure: the user says that it is meant."""
    if IPv4Address(address).is_global and not insecure:
        raise UsageError(
            f"{address} is outside private networks, and this protocol knows no password and no encryption",
            "Go through a VPN or an SSH tunnel; --rpc-insecure connects all the same.",
        )


@functools.cache
def calls() -> RemoteCalls:
    """What calls go through that servers take part in."""
    return RemoteCalls()


def connect(servers: Sequence[str], insecure: bool = False) -> list[int]:
    """The devices of these servers, as llama.cpp's handles. They stay connected until the process ends.

    Raises UsageError on an address that is not private, SpecdecError if a server does not answer, or llama.cpp was
    built without RPC.
    """
    require_build()
    for server in servers:
        if server not in _connected:
            address = _reach(server, insecure)
            calls().add(server)
            _connected[server] = calls().call(library.rpc_devices, address)
        if not _connected[server]:
            raise SpecdecError(f"the server {server} has no device", "Start it on a machine that can compute.")
    return [device for server in servers for device in _connected[server]]


def _reach(server: str, insecure: bool) -> str:
    """The numeric address of a server that accepts connections."""
    host, _, port = server.rpartition(":")
    fix = "Start it there: specdec rpc-server, or llama.cpp's own; and look at its port and the firewall."
    try:
        address = str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        require_private(address, insecure)
        socket.create_connection((address, int(port)), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # the latter: of a name that can be none
        reason = (
            "no answer" if isinstance(error, TimeoutError) else (getattr(error, "strerror", None) or str(error)).lower()
        )
        raise SpecdecError(f"there is no server at {server}: {reason}", fix) from None
    return f"{address}:{port}"
