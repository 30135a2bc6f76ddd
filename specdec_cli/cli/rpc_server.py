"""`specdec rpc-server`: computes layers of a model for another machine."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.output import print_parts


def rpc_server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 50052,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="CPU threads. \\[default: the physical cores]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Devices to compute on. \\[default: all GPUs, or else the CPU]", metavar="NAME[,NAME...]"),
    ] = None,
) -> None:
    """That machine runs specdec with --rpc.

    It uses the protocol of llama.cpp's rpc-server, which has no password and no encryption.
    """
    from ipaddress import ip_address

    from specdec_cli.llama import host as machine
    from specdec_cli.llama import rpc

    names = [name.strip() for name in device.split(",")] if device else []
    devices = rpc.chosen_devices(names)
    host = rpc.free_address(host, port)
    print_parts(f"{', '.join(devices)} at {host}:{port}; Ctrl-C stops it", stderr=True, uncut=True)
    if not ip_address(host).is_loopback:
        warning = "Anyone who can reach this port can use this machine, or worse. Open it only to your own network."
        print_parts(warning, stderr=True, uncut=True)
    threads = min(threads or machine.physical_cores(), machine.processors())
    with interruptible() as interrupt:
        rpc.serve(host, port, threads, devices, interrupt)
        raise typer.Exit(interrupt.exit_code)
