"""Answers bound to the JSON schemas of tests/schemas.py: are they valid, are they the target's own, how fast are they?

python benchmarks/constrained.py [--target M --draft D] [--drafters auto ngram ...] [--temps 0 0.8] [--every 1]

For each schema the target alone answers first, then each drafter, with the same seed (`coupled`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from common import machine
from schemas import invalid, schemas

from specdec_cli import Grammar, SamplingParams, SpeculativeConfig, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--drafters", nargs="+", default=["auto"])
    parser.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--every", type=int, default=1, help="only every so many schemas")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine())
    chosen = dict(list(schemas().items())[:: args.every])
    counts: dict[str, int] = defaultdict(int)
    ratios = defaultdict(list)
    tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    with load(target=args.target, draft=args.draft, threads=args.threads) as engine:
        for kind, schema in chosen.items():
            prompt = f"Write an example as JSON that fits this schema: {kind}"
            for temp in args.temps:
                sampling = SamplingParams(
                    temperature=temp, seed=7, max_tokens=args.max_tokens, grammar=Grammar.json_schema(schema)
                )
                own, alone = None, 0.0
                for drafter in ("none", *args.drafters):
                    ways = SpeculativeConfig(drafter=None if drafter == "auto" else drafter)
                    begun = perf_counter()
                    answer = engine.generate(prompt, sampling, ways)
                    seconds, name = perf_counter() - begun, f"{drafter} {temp:g}"
                    metrics = answer.metrics
                    counts[f"{name} answers"] += 1
                    if answer.finish_reason == "stop":
                        counts[f"{name} finished"] += 1
                        if wrong := invalid(answer.text, schema):
                            counts[f"{name} INVALID"] += 1
                            print(f"{kind}, {name}: {wrong}: {answer.text!r}")
                    sums = tokens[name]
                    sums[:] = sums[0] + metrics.emitted, sums[1] + metrics.forced, sums[2] + metrics.steps + 1
                    if drafter == "none":
                        own, alone = answer, seconds
                    elif own is not None and answer.tokens != own.tokens:
                        counts[f"{name} other text"] += 1
                    else:
                        ratios[name].append(alone / seconds)
    for name, (all_, forced, passes) in tokens.items():
        told = ", ".join(
            f"{key.removeprefix(name + ' ')} {n}" for key, n in counts.items() if key.startswith(f"{name} ")
        )
        speed = f", {statistics.median(ratios[name]):.2f} x the target alone" if ratios[name] else ""
        print(f"{name}: {told}; {all_} tokens, {forced / all_:.0%} forced, {all_ / passes:.2f} a pass{speed}")


if __name__ == "__main__":
    main()
