"""specdec against llama.cpp's own llama-speculative-simple, on the bundled pair at equal fixed settings.

    benchmarks/peers/build_llama_cpp.sh FOLDER
    python benchmarks/peers/speculative_simple.py FOLDER/build/bin/llama-speculative-simple

Greedy, 128 tokens, context 1024. The two are interleaved per prompt, in alternating order; speeds are each
tool's own, of decoding alone; the ratio is taken per prompt, and the medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import PROMPTS, head, machine, open_demo, row
from peers import SpeculativeSimple, Static, Task, interleaved, specdec

TOOLS = ("llama-speculative-simple", "specdec", "target alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-k", type=int, nargs="+", default=[1, 3, 8])
    options = parser.parse_args()
    peer = SpeculativeSimple(options.binary)
    print(machine(), f"{options.threads} threads\n")
    print(head("draft tokens", "target alone", *TOOLS[:2], "ratio", "acceptance, peer", "specdec"))
    for k in options.k:
        rows = []
        with open_demo(draft_tokens=k, threads=options.threads) as engine:
            settings = {"specdec": engine.settings, "target alone": engine.settings.alone()}
            tasks = [Task(text, "", text, tuple(engine.tokenize(text, raw=True))) for text in PROMPTS]
            for _, task, order in interleaved(tasks, TOOLS, options.repeat):
                answers = {
                    tool: specdec(engine, task, settings[tool])
                    if tool in settings
                    else peer.answer(task, Static(k), engine.settings)
                    for tool in order
                }
                theirs, mine, alone = (answers[tool] for tool in TOOLS)
                if mine.counts:
                    speeds = (alone.tokens_per_s, theirs.tokens_per_s, mine.tokens_per_s)
                    rows.append((*speeds, mine.tokens_per_s / theirs.tokens_per_s, theirs.acceptance, mine.acceptance))
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(row(k, *medians[:3], *(f"{share:.2f}" for share in medians[3:])), flush=True)


if __name__ == "__main__":
    main()
