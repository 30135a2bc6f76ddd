"""What the live view costs, and what memory specdec adds to llama.cpp's own.

    python benchmarks/display.py [--repeat N]

The same answer is decoded with the live view on a pseudo-terminal that is read all the while, and with no view,
in alternating order; the ratio of wall-clock times is taken pair by pair.
"""

from __future__ import annotations

import argparse
import os
import pty
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from common import DEMO, PROMPTS, machine, open_demo
from rich.console import Console

from specdec_cli.display.live import LiveDisplay, PlainDisplay
from specdec_cli.engine.session import Session


def run_live(session: Session, prompt: list[int]) -> float:
    """Seconds for one answer on a terminal of 100 by 30, which another process reads, as a terminal is one."""
    leader, follower = pty.openpty()
    with subprocess.Popen(["cat"], stdin=leader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        os.close(leader)
        with os.fdopen(follower, "w") as out:
            console = Console(file=out, force_terminal=True, width=100, height=30, color_system="256", highlight=False)
            display = LiveDisplay(console, session.settings.max_tokens)
            start = perf_counter()
            for event in session.events(prompt, seed=0):
                display.show(event)
            seconds = perf_counter() - start
        reader.wait()
    return seconds


def run_plain(session: Session, prompt: list[int]) -> float:
    """Seconds for one answer as `-q` gives it, to /dev/null."""
    with Path(os.devnull).open("w") as out:
        display = PlainDisplay(out)
        start = perf_counter()
        for event in session.events(prompt, seed=0):
            display.show(event)
        return perf_counter() - start


def display_cost(repeat: int) -> None:
    """The median ratio of wall-clock times."""
    ratios = []
    with open_demo(threads=1, draft_tokens=3, max_tokens=900, temp=1.0, seed=1) as session:
        prompts = [tokens for tokens in map(session.tokenize, PROMPTS) if run_plain(session, tokens) > 0.15]
        for i in range(repeat):
            for prompt in prompts:
                if i % 2:
                    live, plain = run_live(session, prompt), run_plain(session, prompt)
                else:
                    plain, live = run_plain(session, prompt), run_live(session, prompt)
                ratios.append(live / plain)
    low, middle, high = statistics.quantiles(ratios, n=4)
    low, middle, high = ((ratio - 1) * 100 for ratio in (low, middle, high))
    print(f"live view: {middle:+.1f} % wall-clock time (quartiles {low:+.1f} to {high:+.1f})")


BARE = """
import ctypes, resource, llama_cpp.llama_cpp as lib
quiet = lib.llama_log_callback(lambda *_: None)
lib.llama_log_set(quiet, ctypes.c_void_p(0))
for path, rows in ((b"{target}", 4), (b"{draft}", 1)):
    model = lib.llama_model_load_from_file(path, lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_outputs_max = 1024, 512, 512, 1, rows
    context = lib.llama_init_from_model(model, params)
    tokens = (lib.llama_token * 64)(*range(1, 65))
    lib.llama_decode(context, lib.llama_batch_get_one(tokens, 64))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory_cost() -> None:
    """Peak resident memory of a run, less that of the bare bindings with the same models and contexts."""
    code = BARE.format(target=DEMO / "target.gguf", draft=DEMO / "draft.gguf")
    bare = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    command = [sys.executable, "-m", "specdec_cli", "run", "-q", "-c", "1024", "-t", "1", "-n", "256", PROMPTS[0]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ours = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ours, bare = ours // 1024, bare // 1024
    print(f"memory: {ours} MiB, bare llama-cpp-python {bare} MiB, difference {ours - bare} MiB")


def help_time(repeat: int) -> None:
    """The median wall-clock time of `specdec --help`."""
    times = []
    for _ in range(repeat):
        start = perf_counter()
        subprocess.run([sys.executable, "-m", "specdec_cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(perf_counter() - start)
    print(f"specdec --help: {statistics.median(times):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    print(machine(), "\n")
    help_time(options.repeat)
    memory_cost()
    display_cost(options.repeat)
