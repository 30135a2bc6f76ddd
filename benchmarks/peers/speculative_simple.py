"""specdec against llama.cpp's own llama-speculative-simple, on the bundled pair at equal fixed settings.

    benchmarks/peers/build_llama_cpp.sh FOLDER
    python benchmarks/peers/speculative_simple.py FOLDER/build/bin/llama-speculative-simple

Greedy, 128 tokens, context 1024. The two are interleaved per prompt, in alternating order; speeds are each
tool's own, of decoding alone; the ratio is taken per prompt, and the medians are printed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import DEMO, N_CTX, PROMPTS, machine, open_demo

from specdec_cli.cli.session import Session
from specdec_cli.decoding.report import Report

DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds, speed:\s+([\d.]+)")
ACCEPT = re.compile(r"accept\s+=\s+([\d.]+)%")


def peer(binary: str, prompt: str, k: int, threads: int) -> tuple[float, float]:
    """Tokens per second and acceptance rate of llama-speculative-simple."""
    command = [
        *(binary, "-m", str(DEMO / "target.gguf"), "-md", str(DEMO / "draft.gguf"), "-p", prompt, "-n", "128"),
        *("--temp", "0", "-c", str(N_CTX), "-t", str(threads), "--spec-type", "draft-simple"),
        *("--spec-draft-n-max", str(k), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    output = done.stdout + done.stderr
    found = DECODED.search(output)
    if found is None:
        raise SystemExit(f"no speed in the output of {binary}:\n{output}")
    accept = ACCEPT.search(output)
    return float(found[3]), float(accept[1]) / 100 if accept else 0.0


def ours(session: Session, prompt: list[int], alone: bool = False) -> tuple[float, float]:
    """Tokens per second and acceptance rate of specdec."""
    settings = session.settings.alone() if alone else session.settings
    report = Report.of(session.events(prompt, seed=0, settings=settings))
    return report.tokens_per_s or 0.0, report.acceptance_rate or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-k", type=int, nargs="+", default=[1, 3, 8])
    options = parser.parse_args()
    print(machine(), f"{options.threads} threads\n")
    print("| draft tokens | target alone | llama-speculative-simple | specdec | ratio | acceptance, peer | specdec |")
    print("|---|---|---|---|---|---|---|")
    for k in options.k:
        rows = []
        with open_demo(draft_tokens=k, threads=options.threads) as session:
            for i in range(options.repeat):
                for text in PROMPTS:
                    prompt = session.target.tokenize(text)
                    if i % 2:
                        mine, theirs = ours(session, prompt), peer(options.binary, text, k, options.threads)
                    else:
                        theirs, mine = peer(options.binary, text, k, options.threads), ours(session, prompt)
                    alone = ours(session, prompt, alone=True)
                    if mine[0]:  # an answer of one token has no speed
                        rows.append((alone[0], theirs[0], mine[0], mine[0] / theirs[0], theirs[1], mine[1]))
        columns = zip(*rows, strict=True)
        alone_s, peer_s, mine_s, ratio, peer_a, mine_a = (statistics.median(column) for column in columns)
        print(
            f"| {k} | {alone_s:,.0f} | {peer_s:,.0f} | {mine_s:,.0f} | {ratio:.2f} | {peer_a:.2f} | {mine_a:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
