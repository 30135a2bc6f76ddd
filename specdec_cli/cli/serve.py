"""`specdec serve`: an OpenAI-compatible server with a chat page."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from queue import Full, Queue
from threading import Thread
from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_parts
from specdec_cli.cli.slots import DEFAULTS, OPTIONS, QUEUE, open_slots
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.wording import counted

_MAX_LINES = 1000
"""Lines of the log that may wait for the terminal."""
_LAST_LINES_S = 1.0
"""Seconds that they may take at the end."""


@opt.takes(*OPTIONS, **DEFAULTS)
def serve(
    given: opt.Given,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 admits other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8080,
    parallel: Annotated[int, typer.Option("--parallel", "-np", min=1, max=64, help="Answers generated at once.")] = 4,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait for a slot.")] = QUEUE,
    api_key: Annotated[
        str | None, typer.Option(envvar="SPECDEC_API_KEY", help="API key that requests must send.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may send requests; may be repeated.")
    ] = None,
    strict_model: Annotated[
        bool, typer.Option("--strict-model", help="Refuse requests for a model of another name.")
    ] = False,
    grace: Annotated[float, typer.Option(help="Seconds for running answers to finish after a stop signal.")] = 30.0,
) -> None:
    """-c is the context of one slot. Sampling options are the defaults for requests that don't set their own."""
    api_key = api_key and api_key.strip()  # as clients' keys are: an .env file may end its lines with CRLF
    if api_key == "":
        raise UsageError("the API key is empty", "Give a key, or leave out --api-key and SPECDEC_API_KEY.")
    if not grace >= 0:  # nor NaN
        raise UsageError(f"--grace can't be {grace:g}", "Give 0 or more seconds.")
    try:
        from specdec_cli.server.endpoints import Server
        from specdec_cli.server.running import LOOPBACK, Gate, listen, serve_forever
    except ImportError as error:
        what = f"specdec serve needs more packages: {error.name} is missing"
        raise UsageError(what, 'Install them: pip install "specdec-cli[serve]".') from None
    with listen(host, port) as listening, open_slots(given, parallel, queue) as answering, log() as show:
        shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}"
        slots = f"{counted(parallel, 'slot')} of {answering.scheduler.n_ctx:,} tokens"
        what = f"{answering.names[0]}: API at {url}/v1, chat at {url}; {slots}"
        print_parts(f"{what}; Ctrl-C stops it", stderr=True, uncut=True)
        if api_key is None and host not in LOOPBACK:
            note = "note: anyone who can reach this server can use it; --api-key restricts that"
            print_parts(note, stderr=True, style="dim", uncut=True)
        server = Server(answering, strict_model, show if sys.stderr.isatty() else lambda _: None, show)
        number = serve_forever(server, listening, Gate(api_key, cors or (), host), grace)
    os._exit(128 + number)  # Python's own exit stops the thread that ends the process in time, and may take seconds


@contextmanager
def log() -> Iterator[Callable[[str], None]]:
    """A function that prints lines on stderr, with the time. It never waits or fails: a thread prints them, because a
    terminal can stop taking them, as after Ctrl-S, or be gone. If too many wait, it drops new ones. What modules log
    goes the same way.
    """
    lines = Queue[str | None](_MAX_LINES)

    def print_all() -> None:
        for line in iter(lines.get, None):
            with suppress(OSError, ValueError):
                print_parts(line, stderr=True, style="dim", uncut=True)

    def add(line: str) -> None:
        with suppress(Full):
            lines.put_nowait(f"{datetime.now():%H:%M:%S}  {line}")

    printing, handler = Thread(target=print_all, daemon=True), _Handler(add)
    printing.start()
    logging.root.addHandler(handler)
    try:
        yield add
    finally:
        logging.root.removeHandler(handler)
        with suppress(Full):
            lines.put(None, timeout=_LAST_LINES_S)
            printing.join(_LAST_LINES_S)


class _Handler(logging.Handler):
    """Passes on what Python would print on stderr: warnings and errors that modules log."""

    def __init__(self, add: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._add = add

    def emit(self, record: logging.LogRecord) -> None:
        self._add(self.format(record))
