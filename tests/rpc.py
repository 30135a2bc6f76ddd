"""Servers of llama.cpp's RPC backend on loopback, good ones and bad ones."""

import random
import signal
import socket
import socketserver
import struct
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from time import monotonic, sleep

import numpy as np
from driver import SPECDEC

from specdec_cli.decoding import rules
from specdec_cli.decoding.divergence import Choice, Transcript, explain, first_difference, recomputed
from specdec_cli.llama.target import LlamaTarget

VERSION_OF_ANOTHER_AGE = (1, 2, 3)
_HELLO = 28
"""Bytes of the answer to a greeting: four of the version, and what the server can do."""


def free_port():
    """A free port that the system gives to nobody who asks for any: until it is used, other tests ask for many."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class RpcServer:
    """`specdec rpc-server` in a process of its own."""

    def __init__(self):
        for _ in range(3):  # another test may take a port before the server does
            self.port = free_port()
            self.address = f"127.0.0.1:{self.port}"
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            self.process = subprocess.Popen([*SPECDEC, "rpc-server", "--port", str(self.port), "-t", "1"], **pipes)
            if self._serves():
                return
            self.end()
            with self.process.stderr:
                said = self.process.stderr.read().decode()
            if "cannot listen" not in said and "cannot serve" not in said:
                break
        raise AssertionError(said)

    def _serves(self):
        until = monotonic() + 20
        while monotonic() < until and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as asking:
                asking.sendall(struct.pack("<BQ", COMMANDS.index("hello"), 24) + bytes(24))
                if _exactly(asking, 8 + _HELLO):  # nobody answers who only tries whether the port is free
                    return True
            sleep(0.05)
        return False

    def stall(self):
        self.process.send_signal(signal.SIGSTOP)

    def die(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ask it to end; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)


@contextmanager
def rpc_servers(count):
    with ExitStack() as stack:
        servers = [RpcServer() for _ in range(count)]
        for server in servers:
            stack.callback(server.process.stderr.close)
            stack.callback(server.end)
        yield servers


@contextmanager
def fake_server(kind):
    """Something else that listens: silent, a web server, or of another age. Yields its address."""
    answers = {
        "http": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "old": struct.pack("<Q", _HELLO) + bytes([*VERSION_OF_ANOTHER_AGE, 0]) + bytes(_HELLO - 4),
    }
    ended = threading.Event()

    def answer(client):
        if client.recv(1) and kind in answers:
            client.sendall(answers[kind])
        ended.wait(30)

    with _listening(answer) as address:
        try:
            yield address
        finally:
            ended.set()


@contextmanager
def _listening(answer):
    """A server that hands each client to a thread. Yields its address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()


def differs_by_repacking(here, there, plain, prompt, seed=0, **way):
    """Whether an answer over the network is not the one here, which is proved to be rounding, and that of repacked
    weights alone: what `there` computes is, bit for bit, what is computed here of weights that nobody repacked.

    here, there: engines that answer. plain: one here, loaded without repacking.
    """
    settings = replace(here.settings, rpc=None, **way)
    alone, answer = (
        Transcript.of(session.events(prompt, seed, settings=replace(session.settings, **way)))
        for session in (here, there)
    )
    position = first_difference(answer.tokens, alone.tokens)
    if position is not None:
        text = [*prompt, *alone.tokens[:position]]
        sampler = rules.sampler_of(settings.accept, settings, seed)
        sampler.follow(text, len(prompt))
        choice = Choice(sampler, position, len(text), seed)
        divergence = explain(
            prompt, alone, answer, position, choice, lambda transcript: _target(here if transcript is alone else there)
        )
        assert not divergence.bug, f"{way}: {divergence}"
    at = len(answer.tokens) - 1 if position is None else position
    remote, local = (recomputed(_target(session), prompt, answer, at) for session in (there, plain))
    assert isinstance(remote, np.ndarray), remote
    assert np.array_equal(remote, local), f"{way}: at token {at}, rows differ without repacking"
    return position is not None


def _target(session):
    return LlamaTarget(session.models.target.open_kv)


COMMANDS = (
    *("alloc_buffer", "get_alignment", "get_max_size", "buffer_get_base", "free_buffer", "buffer_clear", "set_tensor"),
    *("set_tensor_hash", "get_tensor", "copy_tensor", "graph_compute", "get_device_memory", "init_tensor"),
    *("get_alloc_size", "hello", "device_count", "graph_recompute", "memset_tensor"),
)
"""ggml's, in its order."""
SILENT = {
    *("free_buffer", "buffer_clear", "memset_tensor", "set_tensor", "init_tensor", "graph_compute", "graph_recompute")
}
"""Those without a reply."""


@contextmanager
def lying_server(server, lie):
    """A server in front of a real one that changes replies. lie: from a command and the reply to what is sent, with its
    length first. Yields its address.
    """

    def relay(client):
        with socket.create_connection(("127.0.0.1", server.port)) as real:
            while head := _exactly(client, 9):
                number, size = struct.unpack("<BQ", head)
                command = COMMANDS[number] if number < len(COMMANDS) else str(number)
                real.sendall(head + _exactly(client, size))
                if command in SILENT:
                    continue
                if size := _exactly(real, 8):
                    client.sendall(lie(command, size + _exactly(real, *struct.unpack("<Q", size))))

    with _listening(relay) as address:
        yield address


def _exactly(source, count):
    """So many bytes; empty at the end."""
    data = bytearray()
    while len(data) < count:
        if not (news := source.recv(min(count - len(data), 1 << 20))):
            return b""
        data += news
    return bytes(data)
