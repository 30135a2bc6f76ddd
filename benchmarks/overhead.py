"""Microseconds per step outside llama_decode, by part.

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
from typing import Any

from common import PROMPTS, add_models, machine, markdown, median_and_spread, open_demo

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.engine.session import Session
from specdec_cli.settings.settings import Settings

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
    events = session.events(prompt, seed=1, settings=settings)
    passes = [context.passes for context in session.models.contexts]
    before = [each.decode_s for each in passes]
    report = Metrics.of(events)
    target_s, draft_s = (each.decode_s - then for each, then in zip(passes, before, strict=True))
    if report.steps < 10:
        return None
    # The passes include prefill, whose time is in the report.
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
        for i in range(-1, options.repeat):  # passes are timed before the first
            for text in PROMPTS:
                for name in list(SETTINGS)[:: 1 if i % 2 == 0 else -1]:
                    settings = replace(session.settings, **SETTINGS[name])
                    if (found := one_run(session, session.tokenize(text, raw=True), settings)) and i >= 0:
                        results[name].append(found)
    rows = []
    for name, runs in results.items():
        if runs:
            medians = {part: median_and_spread(run[part] for run in runs)[0] for part in (*PARTS, "share")}
            rows.append({"setting": name, **medians, "total": median_and_spread(run["total"] for run in runs)})
    return rows


def table(data: Mapping[str, Any]) -> str:
    rows = []
    for one in data["steps"]:
        middle, low, high = one["total"]
        cells = (f"{one[part]:.1f}" for part in PARTS)
        rows.append([one["setting"], *cells, f"{middle:.1f} ({low:.1f} to {high:.1f})", f"{one['share']:.1%}"])
    return markdown(["setting", *PARTS, "total us per step (quartiles)", "share"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write the table to this file")
    options = parser.parse_args()
    found = {"machine": machine(), "threads": options.threads, "steps": steps(options)}
    print(f"{found['machine']}, {options.threads} threads\n\n{table(found)}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
