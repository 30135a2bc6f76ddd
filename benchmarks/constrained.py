"""Answers bound to the JSON schemas of tests/schemas.py: are they valid, are they the target's own, how fast are they?

python benchmarks/constrained.py [--target M --draft D] [--drafters auto ngram ...] [--temps 0 0.8] [--every 1]

For each schema the target alone answers first, with a pass for each token, then `none` (tokens that are forced take no
pass) and each drafter, with the same seed (`coupled`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from common import machine
from schemas import invalid, schemas

from specdec_cli import Grammar, SamplingParams, SpeculativeConfig, load
from specdec_cli.constraints.grammar_state import GrammarState
from specdec_cli.measure import hardware


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--drafters", nargs="+", default=["auto"])
    parser.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--every", type=int, default=1, help="only every so many schemas")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--hardware", default="rtx-4090", help="whose curve of costs to predict with")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine())
    chosen = dict(list(schemas().items())[:: args.every])
    verify = hardware.load(args.hardware).costs.verify
    arms: dict[str, Arm] = defaultdict(Arm)
    with load(target=args.target, draft=args.draft, threads=args.threads) as engine:
        engine.generate("Warm up.", SamplingParams(max_tokens=16))
        for kind, schema in chosen.items():
            prompt = f"Write an example as JSON that fits this schema: {kind}"
            for temp in args.temps:
                sampling = SamplingParams(
                    temperature=temp, seed=7, max_tokens=args.max_tokens, grammar=Grammar.json_schema(schema)
                )
                own, alone = None, 0.0
                for drafter in ("alone", "none", *args.drafters):
                    ways = SpeculativeConfig(drafter={"auto": None, "alone": "none"}.get(drafter, drafter))
                    with patch.object(GrammarState, "forced", lambda _: None) if drafter == "alone" else nullcontext():
                        answer = engine.generate(prompt, sampling, ways)
                    metrics, arm = answer.metrics, arms[f"{drafter} {temp:g}"]
                    arm.tokens += metrics.emitted
                    arm.forced += metrics.forced
                    arm.passes += metrics.steps + 1
                    widths = [1 + len(step.drafted) + (step.unread or 0) for step in metrics.history[1:]]
                    arm.predicted_s += sum(map(verify, widths))
                    arm.seconds += metrics.decode_s
                    arm.counts["answers"] += 1
                    if answer.finish_reason == "stop":
                        arm.counts["finished"] += 1
                        if wrong := invalid(answer.text, schema):
                            arm.counts["INVALID"] += 1
                            print(f"{kind}, {drafter} {temp:g}: {wrong}: {answer.text!r}")
                    if drafter == "alone":
                        own, alone = answer, metrics.decode_s
                    elif own is not None and answer.text != own.text:
                        arm.counts["other text"] += 1
                    elif metrics.decode_s and alone:
                        arm.ratios.append(alone / metrics.decode_s)
    for name, arm in arms.items():
        base = arms[f"alone {name.split()[-1]}"]
        told = ", ".join(f"{key} {n}" for key, n in arm.counts.items())
        speed = (
            f"decoding {base.seconds / arm.seconds:.2f} x (median {statistics.median(arm.ratios):.2f} x), "
            f"on {args.hardware} {base.predicted_s / arm.predicted_s:.2f} x"
            if arm.ratios
            else ""
        )
        print(f"{name}: {told}; {arm.forced / arm.tokens:.0%} forced, {arm.tokens / arm.passes:.2f} a pass; {speed}")


@dataclass
class Arm:
    """predicted_s: of all passes of the target, on other hardware."""

    tokens: int = 0
    forced: int = 0
    passes: int = 0
    seconds: float = 0.0
    predicted_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    ratios: list[float] = field(default_factory=list)


if __name__ == "__main__":
    main()
