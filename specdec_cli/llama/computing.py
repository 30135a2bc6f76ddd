"""Where llama.cpp computes on the CPU: in which thread of the process, and with which thread pool.

With OpenMP, llama.cpp is fast only in one thread of a process. While a first thread that has started a parallel region
lives, libgomp counts its idle workers, too: for a second thread it sees more threads than cores, and lets workers sleep
between the steps of a pass, which then takes three to six times as long. So with such a build one thread computes for
all others, which costs some 30 us a pass.

`make setup` builds without OpenMP. ggml would then create new threads for each pass, which costs a fifth of a pass of
half a millisecond, so it gets permanent pools, one for each number of threads. A pool takes one pass at a time. Engines
take turns, guarded by a lock, which costs no speed.

With AMX, llama.cpp sets up the processor's tiles only once for each thread. PyTorch sets them up in another way, and a
pass in the same thread would then end the process with an illegal instruction. So once PyTorch has been imported, one
thread computes for all others here, too.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from specdec_cli.llama import library, undeclared
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.interrupt import Interrupt

Result = TypeVar("Result")
Call = Callable[..., Any]
"""How a model's functions are called: `call(function, *arguments, allowed_s=...)`."""

_turn = Lock()
_POLL = 1
"""How long a pool's threads wait for the next pass before they sleep, in ggml's unit: some milliseconds. 0 costs a
wake-up for each pass; the default of 50 keeps the cores busy for a fifth of a second after each."""
_DEFAULT_POLL = 50
_N_THREADS, _POLL_AT, _PARAMS_BYTES = 512, 520, 4096
"""Offsets of the number of threads and the poll level in ggml_threadpool_params, and enough bytes for that struct."""


class PendingCall:
    """A call of a function. Once `done` is set, it has a result or an error."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.error: Exception | None = None
        self.done = Event()

    def run(self) -> None:
        try:
            self.result = self.function(*self.arguments)
        except Exception as error:
            self.error = error
        self.done.set()


class Worker:
    """A thread that runs calls for others, one after another; it ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[PendingCall] = SimpleQueue()
        Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: PendingCall) -> None:
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get().run()


@cache
def has_openmp() -> bool:
    """Whether this build uses OpenMP."""
    return "OPENMP = 1" in library.build_flags()


@cache
def _has_amx() -> bool:
    return "AMX_INT8 = 1" in library.build_flags()


def _needs_only_thread() -> bool:
    return has_openmp() or ("torch" in sys.modules and _has_amx())


@cache
def _only_thread() -> Worker:
    """The one thread of this process that computes, if that is needed."""
    return Worker("llama.cpp")


def call(
    function: Callable[..., Result], *arguments: Any, allowed_s: float = 0.0, interrupt: Interrupt | None = None
) -> Result:
    """Call a function of llama.cpp that may compute on this machine, and wait for it. allowed_s: ignored. interrupt:
    set on Ctrl-C; for functions that call Python back, where what Ctrl-C raises would be lost.
    """
    if not ((only := _needs_only_thread()) or interrupt):
        return function(*arguments)
    job = PendingCall(function, arguments)
    if only:
        _only_thread().submit(job)
    else:
        Thread(target=job.run, name="llama.cpp", daemon=True).start()
    stopped: BaseException | None = None
    while not job.done.is_set():
        try:
            job.done.wait(Interrupt.POLL_S)  # on Windows, Ctrl-C doesn't end a wait
        except BaseException as error:  # Ctrl-C: nothing else may touch what it computes with
            stopped = error
            if interrupt:
                interrupt.set()
    if failed := stopped or job.error:
        raise failed
    return job.result  # type: ignore[no-any-return]


def turn(offloaded: bool) -> AbstractContextManager[object]:
    """What to hold during a pass. offloaded: whether it runs wholly on GPUs, or partly on other machines."""
    return nullcontext() if offloaded or has_openmp() else _turn


def use_threads(context: Any, threads: int, offloaded: bool = False) -> None:
    """Set the threads of a llama.cpp context. offloaded: as in `turn`; without turns, it gets no pool."""
    lib.llama_set_n_threads(context, threads, threads)
    if pool := None if offloaded else _pool(threads):
        undeclared.call("llama_attach_threadpool", context, pool, pool)
    else:
        undeclared.call("llama_detach_threadpool", context)


def use_threads_of_graph(backend: Any, threads: int) -> None:
    """Set the threads of ggml's CPU backend."""
    undeclared.cpu_function("ggml_backend_set_n_threads", None, ctypes.c_void_p, ctypes.c_int)(backend, threads)
    if attach := undeclared.cpu_function("ggml_backend_cpu_set_threadpool", None, ctypes.c_void_p, ctypes.c_void_p):
        attach(backend, _pool(threads))


@cache
def _pool(threads: int) -> int | None:
    """ggml's pool of this many threads; None if none is needed, or this build's pools aren't as expected."""
    if threads < 2 or has_openmp() or not undeclared.exports("ggml_threadpool_params_init"):
        return None
    new = undeclared.cpu_function("ggml_threadpool_new", ctypes.c_void_p, ctypes.c_void_p)
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    undeclared.call("ggml_threadpool_params_init", params, threads)
    count, poll = (ctypes.c_uint32.from_buffer(params, place) for place in (_N_THREADS, _POLL_AT))
    if new is None or (count.value, poll.value) != (threads, _DEFAULT_POLL):
        return None
    poll.value = _POLL
    made: int | None = new(ctypes.addressof(params))
    return made


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    for _cached in (_only_thread, _pool):
        os.register_at_fork(after_in_child=_cached.cache_clear)
    os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)
