"""Milliseconds of a pass over one token from the main thread and from a second one, in turns.

    python benchmarks/threads.py [--target T.gguf] [--direct]

--direct calls llama.cpp from the calling thread, without thread pools, as programs that use the bindings do.
LLAMA_CPP_LIB_PATH selects another build: tests/kernels/build makes one with OpenMP.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

from common import DEMO, machine

from specdec_cli.llama import computing, host
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement

TOKENS, ROUNDS = 50, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=DEMO / "target.gguf")
    parser.add_argument("--direct", action="store_true")
    args = parser.parse_args()
    has_openmp = computing.has_openmp()
    if args.direct:
        computing.has_openmp, computing._pool = lambda: False, lambda _: None
    model = Model(args.target, Placement(0), Interrupt())
    context = LlamaContext.open(model, 512, 1, host.physical_cores(), Interrupt())

    def lap() -> float:
        context.rewind(0)
        context.decode(tuple(range(100, 132)))
        started = perf_counter()
        for token in range(200, 200 + TOKENS):
            context.decode((token,))
        return 1000 * (perf_counter() - started) / TOKENS

    with ThreadPoolExecutor(1) as second:
        laps = [(lap(), second.submit(lap).result()) for _ in range(ROUNDS)]
    found = (median(column) for column in zip(*laps[1:], strict=True))
    print(machine(), "OpenMP" if has_openmp else "no OpenMP", "direct" if args.direct else "specdec", sep=", ")
    print(args.target.name, *(f"{ms:.2f} ms" for ms in found))


if __name__ == "__main__":
    main()
