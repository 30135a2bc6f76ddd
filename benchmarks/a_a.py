"""The target alone against itself, many times: how often does `compare` claim a difference that is not there?

python benchmarks/a_a.py [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from common import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    print(machine(), "\n")
    command = [sys.executable, "-m", "specdec_cli", "compare", "--sweep", "drafter=none", "-t", "1", "-n", "48"]
    command += ["--prompts", "python", "--limit", "12", "--json"]
    silent = 0
    for _ in range(options.runs):
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        found = next(s["speedup"] for s in result["summaries"] if s["category"] == "all" and s["speedup"])
        silent += found["difference"] not in ("faster", "slower")
        print(f"{found['mean']:.3f}x ({found['low']:.3f} to {found['high']:.3f}): {found['difference']}", flush=True)
    print(f"\nno difference claimed in {silent} of {options.runs} runs")


if __name__ == "__main__":
    main()
