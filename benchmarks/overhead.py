"""Seconds per step outside llama_decode, by part; and the cost of rows of a 150k-token vocabulary.

    python benchmarks/overhead.py [--threads N] [--repeat N]
    python benchmarks/overhead.py --target T.gguf --draft D.gguf --steps-only --out FILE.json

Settings are interleaved per prompt; figures are medians over prompts and repeats, with quartiles. The share is that
of the time from an answer's first token to its last.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from common import DEMO, PROMPTS, add_models, forward_s, machine, median_and_spread, open_demo

from specdec_cli.decoding.accept import rejection
from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler, confidence
from specdec_cli.decoding.types import Draft
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import hardware
from specdec_cli.measure import simulator as simulation

ARMS: list[tuple[str, dict[str, Any]]] = [
    ("target alone, greedy", {"drafter": "none"}),
    ("k=1, greedy", {"draft_tokens": 1}),
    ("k=3, greedy", {"draft_tokens": 3}),
    ("k=8, greedy", {"draft_tokens": 8}),
    ("k=auto, greedy", {"draft_tokens": "auto"}),
    ("target alone, temp 0.8", {"drafter": "none", "temp": 0.8}),
    ("k=1, temp 0.8", {"draft_tokens": 1, "temp": 0.8}),
    ("k=3, temp 0.8", {"draft_tokens": 3, "temp": 0.8}),
    ("k=auto, temp 0.8", {"draft_tokens": "auto", "temp": 0.8}),
    ("k=3, temp 0.8, match", {"draft_tokens": 3, "temp": 0.8, "accept": "match"}),
]


PARTS = ("draft", "verify", "sample", "rest")


def one_run(session: Session, prompt: list[int], settings: Settings) -> dict[str, float] | None:
    """Microseconds per step of one answer, by part, and their share; None if it was too short to tell."""
    events = session.events(prompt, seed=1, settings=settings)  # the first for `auto` times passes
    before = forward_s(session)
    report = Metrics.of(events)
    target_s, draft_s = (now - then for now, then in zip(forward_s(session), before, strict=True))
    if report.steps < 10:
        return None
    # The prompt's own passes are in forward_s too; what they cost is in the report.
    parts = {
        "draft": report.draft_s - draft_s,
        "verify": report.verify_s - (target_s - report.prefill_s),
        "sample": report.sample_s,
        "rest": report.overhead_s,
    }
    parts["total"] = sum(parts.values())
    found = {name: seconds / report.steps * 1e6 for name, seconds in parts.items()}
    return {**found, "share": parts["total"] / report.decode_s}


def steps_table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the table of microseconds per step; returns it too."""
    results: list[list[dict[str, float]]] = [[] for _ in ARMS]
    models = {"target": options.target, "draft": options.draft}
    deadline = perf_counter() + options.seconds
    with open_demo([way for _, way in ARMS], threads=options.threads, **models) as session:
        for i in range(options.repeat):
            for text in PROMPTS:
                if perf_counter() > deadline and any(results):
                    break
                order = list(enumerate(ARMS))
                for at, (_, way) in order if i % 2 == 0 else reversed(order):
                    settings = replace(session.settings, **way)
                    found = one_run(session, session.tokenize(text, raw=True), settings)
                    if found:
                        results[at].append(found)
    print("| setting | draft | verify | sample | rest | total us a step (quartiles) | share |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for (name, way), runs in zip(ARMS, results, strict=True):
        if not runs:
            continue
        middle, low, high = median_and_spread(run["total"] for run in runs)
        medians = {part: median_and_spread(run[part] for run in runs)[0] for part in (*PARTS, "share")}
        cells = " | ".join(f"{medians[part]:.1f}" for part in PARTS)
        print(f"| {name} | {cells} | {middle:.1f} ({low:.1f} to {high:.1f}) | {medians['share']:.1%} |")
        rows.append({"setting": name, "sampled": "temp" in way, **medians, "total": [middle, low, high]})
    return rows


def big_vocabulary(n_vocab: int = 151_936, rows: int = 300) -> None:
    """Time per verified row: make p, test one draft token against it, or draw from it."""
    rng = np.random.default_rng(0)
    # Logits as language models give them: a few likely tokens over a long tail.
    logits = (rng.standard_normal((8, n_vocab)) * 2.5).astype(np.float32)
    for row in logits:
        row[rng.integers(0, n_vocab, 30)] += rng.uniform(4, 14, 30).astype(np.float32)
    print(f"\n| sampler, vocabulary {n_vocab:,} | us a verified row (quartiles) |")
    print("|---|---|")
    for name, settings in (
        ("defaults (top-k 40, top-p 0.95, min-p 0.05)", {}),
        ("top-p 0.95 alone", {"top_k": 0, "min_p": 0}),
        ("min-p 0.05 alone", {"top_k": 0, "top_p": 1}),
        ("no cut", {"top_k": 0, "top_p": 1, "min_p": 0}),
    ):
        sampler = StandardSampler(SamplingSettings(temperature=0.8, **settings))
        times = []
        for i in range(rows):
            q = sampler.categorical(logits[i % 8] + 0)
            draft = Draft((q.draw(rng),), (q,))
            start = perf_counter()
            verdict = rejection(draft, logits[[i % 8, (i + 1) % 8]], sampler, rng)
            times.append((perf_counter() - start) * 1e6 / (1 + verdict.accepted))
        middle, low, high = median_and_spread(times)
        print(f"| {name} | {middle:.0f} ({low:.0f} to {high:.0f}) |")


def confidence_table(n_vocab: int = 151_936, rows: int = 200) -> None:
    """Time to know how sure a draft model is, by how many tokens are within e^18 of the most likely."""
    print(f"\n| tokens within e^18 of the best, of {n_vocab:,} | us to know its probability (quartiles) |\n|---|---|")
    row = (np.random.default_rng(0).standard_normal(n_vocab) * 2.5).astype(np.float32)
    for share in (0.001, 0.01, 0.03, 0.1, 0.3, 0.9):
        row[7] = 0
        row[7] = np.quantile(row, 1 - share) + 18
        times = []
        for _ in range(rows):
            start = perf_counter()
            confidence(row)
            times.append((perf_counter() - start) * 1e6)
        middle, low, high = median_and_spread(times)
        print(f"| {share:.1%} | {middle:.0f} ({low:.0f} to {high:.0f}) |")


def policy_table(repeat: int = 9) -> None:
    """What `-k auto` itself costs: its own calls in replays of recorded answers, made again without the simulator."""
    print("\n| auto, replayed on the costs of | tokens/step | us a step (quartiles) |\n|---|---|---|")
    answers = recordings.read(DEMO / "recordings" / "greedy.json.gz").answers
    for name in hardware.names():
        costs = hardware.load(name).costs
        calls: list[tuple[str, tuple[object, ...]]] = []
        tally = simulation.replay(_Noting(_auto(costs), calls), answers, costs)  # type: ignore[arg-type]
        steps = tally.verified.total()
        times = []
        for _ in range(repeat):
            policy = _auto(costs)
            bound = [(getattr(policy, method), arguments) for method, arguments in calls]
            start = perf_counter()
            for method, arguments in bound:
                method(*arguments)
            times.append((perf_counter() - start) / steps * 1e6)
        middle, low, high = median_and_spread(times)
        print(f"| {name} | {tally.tokens / steps:.2f} | {middle:.1f} ({low:.1f} to {high:.1f}) |")


def _auto(costs: Costs) -> AutoLength:
    return AutoLength(CostModel(costs, LONGEST), Calibration.prior(greedy=True))


class _Noting:
    """A policy that writes down how it is called."""

    def __init__(self, policy: AutoLength, calls: list[tuple[str, tuple[object, ...]]]) -> None:
        self._policy, self._calls = policy, calls
        self.why = ""

    def __getattr__(self, name: str) -> object:
        method = getattr(self._policy, name)

        def noted(*arguments: object) -> object:
            self._calls.append((name, arguments))
            return method(*arguments)

        return noted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further prompt after that")
    add_models(parser)
    parser.add_argument("--steps-only", action="store_true", help="not the tables that need no models")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write the first table to this file")
    options = parser.parse_args()
    print(machine(), f"{options.threads} threads\n")
    rows = steps_table(options)
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "threads": options.threads, "steps": rows}, indent=1))
    if not options.steps_only:
        big_vocabulary()
        confidence_table()
        policy_table()
