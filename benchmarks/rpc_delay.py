"""The speedup of speculation if another machine computes the target, by the delay of the network between them.

    python benchmarks/rpc_delay.py [--target T.gguf --draft D.gguf] [--delays 0 1 5 20] [--servers 2]

The servers run on loopback, each behind a proxy that delays every byte by the given milliseconds, in each direction.
`specdec compare` measures `-k auto` against the target alone, paired and interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from common import add_models, free_port, head, machine, row

SPECDEC = [sys.executable, "-m", "specdec_cli"]
START_S = 20.0
_CHUNK = 1 << 18


@contextmanager
def running_server(threads: int) -> Iterator[int]:
    """Run `specdec rpc-server` in a process; yields its port."""
    port = free_port()
    command = [*SPECDEC, "rpc-server", "--port", str(port), "-t", str(threads)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    until = monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if monotonic() > until:
                raise
            sleep(0.05)


def delay_all(port: int, behind: int, delay_s: float) -> None:
    """Forward bytes between `port` and the port `behind`, in both directions, each with a delay."""

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, due - monotonic()))
                if not chunk:
                    writer.close()
                    return
                writer.write(chunk)
                await writer.drain()

        writing = asyncio.create_task(write())
        while chunk := await reader.read(_CHUNK):
            chunks.put_nowait((monotonic() + delay_s, chunk))
        chunks.put_nowait((monotonic() + delay_s, b""))
        await writing

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", behind)
        for each in (writer, far_writer):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(passed_on(reader, far_writer), passed_on(far_reader, writer), return_exceptions=True)

    async def listen() -> None:
        await (await asyncio.start_server(connected, "127.0.0.1", port)).serve_forever()

    asyncio.run(listen())


@contextmanager
def delayed(behind: int, delay_s: float) -> Iterator[int]:
    """Run a proxy in a process; yields its port."""
    port = free_port()
    process = multiprocessing.Process(target=delay_all, args=(port, behind, delay_s), daemon=True)
    process.start()
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        process.join()


def compare(addresses: Sequence[str], chosen: argparse.Namespace) -> Any:
    """The result of `specdec compare`, as an object."""
    rpc = ["--rpc", ",".join(addresses)] if addresses else []
    suite = ["--prompts", chosen.prompts, "--per-category", str(chosen.per_category), "--repeat", str(chosen.repeat)]
    variant = ["--drafter", chosen.drafter, "-n", str(chosen.max_tokens), "-t", str(chosen.threads)]
    pair = ["-m", chosen.target, *(["-md", chosen.draft] if chosen.draft else [])]
    command = [*SPECDEC, "compare", *pair, *rpc, *suite, *variant, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 1, 5, 20], help="milliseconds each way")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--drafter", default="ngram+model")
    parser.add_argument("--prompts", default="python")
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    chosen = parser.parse_args()
    print(f"{machine()}; {Path(chosen.target).name}, {chosen.servers} servers, {chosen.drafter}\n")
    columns = ("alone, ms per token", "auto, ms per token", "speedup", "worst category", "tokens per step", "texts")
    print(head("delay, ms", *columns))
    for place in [None, *chosen.delays]:
        with ExitStack() as stack:
            servers = range(0 if place is None else chosen.servers)
            ports = [stack.enter_context(running_server(chosen.threads)) for _ in servers]
            if place:
                ports = [stack.enter_context(delayed(port, place / 1000)) for port in ports]
            show(place, compare([f"127.0.0.1:{port}" for port in ports], chosen))


def show(delay: float | None, result: Any) -> None:
    """Print a row: medians over the prompts, and the worst category."""
    best = [each for each in result["summaries"] if each["speedup"]]
    whole = next(each for each in best if each["category"] == "all")
    alone = next(each for each in result["summaries"] if each["category"] == "all" and not each["speedup"])
    worst = min((each["speedup"]["mean"], each["category"]) for each in best)
    exact = result["exactness"][whole["variant"]]
    interval = whole["speedup"]
    cells = [
        "local" if delay is None else f"{delay:g}",
        f"{alone['tpot_ms']:.1f}",
        f"{whole['tpot_ms']:.1f}",
        f"{interval['mean']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})",
        f"{worst[0]:.2f} ({worst[1]})",
        f"{whole['tokens_per_step']:.2f}",
        ", ".join(f"{count} {kind}" for kind, count in exact.items() if count),
    ]
    print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
