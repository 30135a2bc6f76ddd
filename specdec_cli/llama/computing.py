"""Where llama.cpp computes on the CPU: in which thread of the process, and with which threads of its own.

Built with OpenMP, llama.cpp computes well in one thread of a process alone. While a first thread that has started a
parallel region lives, libgomp counts its idle workers, too: for a second one it sees more threads than cores, and lets
workers sleep between the steps of a pass, which then takes three to six times as long. So with such a build everything
that computes goes to one thread, whoever asks: some 30 us a pass.

`make setup` builds without OpenMP. Then ggml would make the threads of each pass anew, a fifth of a pass of half a
millisecond; so it is given pools that stay, one for each number of threads. A pool takes one pass at a time, and two
engines that compute in turns are as fast as one: a lock sees to that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from specdec_cli.llama import ggml, library
from specdec_cli.llama.bindings import lib

Result = TypeVar("Result")
Call = Callable[..., Any]
"""How a model's functions are called: `call(function, *arguments, allowed_s=...)`."""

# The bindings do not declare these two.
_attach = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(("llama_attach_threadpool", lib._lib))
_detach = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("llama_detach_threadpool", lib._lib))

_turn = Lock()
_POLL = 1
"""For how long a pool's threads wait for the next pass before they sleep, in ggml's measure: some milliseconds. 0 costs
a wake-up a pass, the default of 50 keeps the cores busy for a fifth of a second after each."""
_DEFAULT_POLL = 50
_N_THREADS, _POLL_AT, _PARAMS_BYTES = 512, 520, 4096
"""Where ggml_threadpool_params has the number of threads and the poll level; room for it, whatever its size is."""


class PendingCall:
    """A call of a function. Once `done` is set, it has a result or an error."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.error: Exception | None = None
        self.done = Event()


class Worker:
    """A thread that calls functions for others, one after another; it ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[PendingCall] = SimpleQueue()
        Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: PendingCall) -> None:
        """Have it done as soon as earlier ones are."""
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call.result = call.function(*call.arguments)
            except Exception as error:
                call.error = error
            call.done.set()


@cache
def has_openmp() -> bool:
    """Whether this build computes with OpenMP."""
    return "OPENMP = 1" in library.build_flags()


@cache
def _only_thread() -> Worker:
    """The thread of this process that computes, with a build that has OpenMP."""
    return Worker("llama.cpp")


def call(function: Callable[..., Result], *arguments: Any, allowed_s: float = 0.0) -> Result:
    """Call a function of llama.cpp that computes here, or may. It is waited for, however long it takes."""
    if not has_openmp():
        return function(*arguments)
    _only_thread().submit(job := PendingCall(function, arguments))
    job.done.wait()
    if job.error:
        raise job.error
    return job.result  # type: ignore[no-any-return]


def turn(offloaded: bool) -> AbstractContextManager[object]:
    """What to hold during a pass. offloaded: all of it is computed on GPUs, or some on other machines."""
    return nullcontext() if offloaded or has_openmp() else _turn


def use_threads(context: Any, threads: int, offloaded: bool = False) -> None:
    """Let a context of llama.cpp compute with so many threads. offloaded: as above; it takes no turns, so no pool."""
    lib.llama_set_n_threads(context, threads, threads)
    if pool := None if offloaded else _pool(threads):
        _attach(context, pool, pool)
    else:
        _detach(context)


def use_threads_of_graph(backend: Any, threads: int) -> None:
    """The same for the CPU's backend of ggml."""
    ggml.cpu_function("ggml_backend_set_n_threads", None, ctypes.c_void_p, ctypes.c_int)(backend, threads)
    if attach := ggml.cpu_function("ggml_backend_cpu_set_threadpool", None, ctypes.c_void_p, ctypes.c_void_p):
        attach(backend, _pool(threads))


@cache
def _pool(threads: int) -> int | None:
    """ggml's pool of so many threads; None where it needs none, or has no such thing as we know it."""
    if threads < 2 or has_openmp() or not ggml.exports("ggml_threadpool_params_init"):
        return None
    new = ggml.cpu_function("ggml_threadpool_new", ctypes.c_void_p, ctypes.c_void_p)
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    ggml.call("ggml_threadpool_params_init", params, threads)
    count, poll = (ctypes.c_uint32.from_buffer(params, place) for place in (_N_THREADS, _POLL_AT))
    if new is None or (count.value, poll.value) != (threads, _DEFAULT_POLL):
        return None
    poll.value = _POLL
    made: int | None = new(ctypes.addressof(params))
    return made
