"""Microseconds per step outside llama_decode, by part, and the time that `-k auto` itself takes.

    python benchmarks/overhead.py [--threads N] [--repeat N] [--target T.gguf --draft D.gguf]

Settings are interleaved per prompt; figures are medians over prompts and repeats, with quartiles. Shares are of the
time from an answer's first token to its last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from common import DEMO, PROMPTS, add_models, forward_s, head, machine, median_and_spread, open_demo, row

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.draft_length.auto import LONGEST, AutoLength
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.engine.session import Session
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import hardware
from specdec_cli.measure import simulate as simulation
from specdec_cli.settings.config import Settings

SETTINGS: dict[str, dict[str, Any]] = {
    "target alone, greedy": {"drafter": "none"},
    "k=1, greedy": {"draft_tokens": 1},
    "k=3, greedy": {"draft_tokens": 3},
    "k=8, greedy": {"draft_tokens": 8},
    "k=auto, greedy": {"draft_tokens": "auto"},
    "target alone, temp 0.8": {"drafter": "none", "temperature": 0.8},
    "k=1, temp 0.8": {"draft_tokens": 1, "temperature": 0.8},
    "k=3, temp 0.8": {"draft_tokens": 3, "temperature": 0.8},
    "k=auto, temp 0.8": {"draft_tokens": "auto", "temperature": 0.8},
    "k=3, temp 0.8, match": {"draft_tokens": 3, "temperature": 0.8, "accept": "match"},
}
PARTS = ("draft", "verify", "sample", "rest")


def one_run(session: Session, prompt: list[int], settings: Settings) -> dict[str, float] | None:
    """Microseconds per step of one answer, by part, and their share; None if the answer was too short."""
    events = session.events(prompt, seed=1, settings=settings)  # the first for `auto` times passes
    before = forward_s(session)
    report = Metrics.of(events)
    target_s, draft_s = (now - then for now, then in zip(forward_s(session), before, strict=True))
    if report.steps < 10:
        return None
    # forward_s includes prefill, whose time is in the report.
    parts = {
        "draft": report.draft_s - draft_s,
        "verify": report.verify_s - (target_s - report.prefill_s),
        "sample": report.sample_s,
        "rest": report.overhead_s,
    }
    parts["total"] = sum(parts.values())
    found = {name: seconds / report.steps * 1e6 for name, seconds in parts.items()}
    return {**found, "share": parts["total"] / report.decode_s}


def steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """For each setting, the medians of its parts in microseconds, and the median and quartiles of their total."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    models = {"target": options.target, "draft": options.draft}
    with open_demo([*SETTINGS.values()], threads=options.threads, **models) as session:
        for i in range(options.repeat):
            for text in PROMPTS:
                for name in list(SETTINGS)[:: 1 if i % 2 == 0 else -1]:
                    settings = replace(session.settings, **SETTINGS[name])
                    if found := one_run(session, session.tokenize(text, raw=True), settings):
                        results[name].append(found)
    rows = []
    for name, runs in results.items():
        if runs:
            medians = {part: median_and_spread(run[part] for run in runs)[0] for part in (*PARTS, "share")}
            rows.append({"setting": name, **medians, "total": median_and_spread(run["total"] for run in runs)})
    return rows


def table(data: Mapping[str, Any]) -> str:
    lines = [head("setting", *PARTS, "total us per step (quartiles)", "share")]
    for one in data["steps"]:
        middle, low, high = one["total"]
        cells = (f"{one[part]:.1f}" for part in PARTS)
        lines.append(row(one["setting"], *cells, f"{middle:.1f} ({low:.1f} to {high:.1f})", f"{one['share']:.1%}"))
    return "\n".join(lines)


class Timed:
    """A policy whose calls are timed, which adds a quarter of a microsecond per call."""

    def __init__(self, policy: AutoLength) -> None:
        self._policy, self.why, self.seconds = policy, "", 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._policy, name)

        def timed(*arguments: object) -> object:
            start = perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += perf_counter() - start

        return timed


def policy_table(repeat: int = 5) -> None:
    """Print the time that `-k auto` itself takes in replays of recorded answers."""
    print("\n" + head("auto, replayed on the costs of", "tokens/step", "us per step (quartiles)"))
    answers = recordings.read(DEMO / "recordings" / "greedy.json.gz").answers
    for name in hardware.names():
        costs, times = hardware.load(name).costs, []
        for _ in range(repeat):
            policy = Timed(AutoLength(CostModel(costs, LONGEST), Calibration.prior(greedy=True)))
            tally = simulation.replay(policy, answers, costs)  # type: ignore[arg-type]
            times.append(policy.seconds / tally.verified.total() * 1e6)
        middle, low, high = median_and_spread(times)
        steps = tally.tokens / tally.verified.total()
        print(row(name, f"{steps:.2f}", f"{middle:.1f} ({low:.1f} to {high:.1f})"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write the first table to this file")
    options = parser.parse_args()
    found = {"machine": machine(), "threads": options.threads, "steps": steps(options)}
    print(f"{machine()}, {options.threads} threads\n\n{table(found)}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    policy_table()


if __name__ == "__main__":
    main()
