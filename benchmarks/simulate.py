"""Every draft-length policy under every machine's costs, from a recording: deterministic, without a model.

    python benchmarks/simulate.py                  # tables in Markdown
    python benchmarks/simulate.py --record         # record the bundled pair again (minutes; changes the figures)
    python benchmarks/simulate.py --measure        # this machine's cost curve as a file for profiles/hardware

A cell is one machine, one category of the suite and one temperature. In each, `auto` runs once through all answers,
knowing only the costs at first; the best fixed length (k = 0 to 16) and the best static setting (k and min-p 0, 0.5,
0.75, 0.9) are those found best in that very cell, with hindsight; the clairvoyant drafts what will be accepted, as
far as it pays. Recorded greedy text begins at several places of sampled answers, for from its prompts alone this
small model soon falls into loops; what loops is left out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from common import DEMO, geometric_mean, machine, open_demo

from specdec_cli.cli.recorder import record
from specdec_cli.decoding import simulation
from specdec_cli.decoding.report import Report
from specdec_cli.decoding.simulation import Answer
from specdec_cli.models import hardware, recordings, suites

RECORDINGS = DEMO / "recordings"
SAMPLED_TOKENS, GREEDY_TOKENS = 96, 64
CUTS = (0, 24, 48, 72)
SEEDS = (1, 2)
TEMPERATURE = 0.8


def record_all() -> None:
    """Record the suite of the bundled pair, at both temperatures."""
    greedy: list[Answer] = []
    sampled: list[Answer] = []
    with open_demo(temp=TEMPERATURE, max_tokens=SAMPLED_TOKENS) as session:
        cold = replace(session.settings, temp=0.0, max_tokens=GREEDY_TOKENS)
        for prompt in suites.load("python"):
            start = session.target.tokenize(prompt.text)
            for seed in SEEDS:
                answer, tokens = record(session, start, session.settings, seed, prompt.category)
                sampled.append(answer)
                for cut in CUTS if seed == SEEDS[0] else CUTS[1:]:
                    answer, _ = record(session, start + tokens[:cut], cold, seed, prompt.category)
                    greedy.append(answer)
            print(prompt.id, file=sys.stderr)
    about = {"target": "target.gguf", "draft": "draft.gguf", "suite": "python"}
    long_enough = [answer for answer in greedy if len(answer.stands) >= 16]
    recordings.write(RECORDINGS / "greedy.json.gz", recordings.Recording(True, tuple(long_enough), about))
    about["sampling"] = f"temperature {TEMPERATURE}, top-k 40, top-p 0.95, min-p 0.05, rejection"
    recordings.write(RECORDINGS / "rejection.json.gz", recordings.Recording(False, tuple(sampled), about))


def measure() -> None:
    """Print this machine's costs with the bundled pair, medians of many rounds."""
    with open_demo(draft_tokens="auto") as session:
        text = session.target.tokenize("def median(values):\n    return sorted(values)[len(values) // 2]\n" * 20)
        costs = session.costs(text, budget_s=10.0)
        report = Report.of(session.events(text[:64], seed=0, settings=session.settings.alone()))
        other = (report.sample_s + report.overhead_s) / report.steps
    print(f'description: "{machine()}; the bundled pair"')
    print("basis: measured\nsource: benchmarks/simulate.py --measure")
    for name, curve in (("verify_ms", costs.verify), ("draft_ms", costs.draft)):
        points = ", ".join(f"{n}: {seconds * 1000:.3g}" for n, seconds in sorted(curve.points.items()))
        print(f"{name}: {{{points}}}")
    print(f"other_ms: {other * 1000:.2g}")


def tables() -> None:
    """One table a temperature, and what all cells come to."""
    machines = [hardware.load(name) for name in hardware.names()]
    all_static, all_fixed, missed = [], [], []
    for name in ("greedy", "rejection"):
        recording = recordings.read(RECORDINGS / f"{name}.json.gz")
        print(f"**{name}**, speedup against the target alone\n")
        print(
            "| machine | category | best fixed k | best static (k, min-p) | auto | auto / static | auto / fixed |",
            end="",
        )
        print(" share of the clairvoyant's |\n|---|---|---|---|---|---|---|---|")
        for category, answers in recording.by_category().items():
            tallies = simulation.statics(answers)
            for found in machines:
                base = tallies[0, 0.0].tokens_per_s(found.costs)
                (k, _), fixed = simulation.best(tallies, found.costs, fixed=True)
                setting, static = simulation.best(tallies, found.costs)
                auto = simulation.adaptive(answers, found.costs, recording.greedy).tokens_per_s(found.costs)
                bound = simulation.clairvoyant(answers, found.costs)
                all_static.append(auto / static)
                all_fixed.append(auto / fixed)
                if auto < 0.99 * max(static, base):
                    missed.append(f"{found.name} {category} {name}: {auto / static:.3f}")
                columns = (
                    *(found.name, category, f"{fixed / base:.2f} ({k})"),
                    f"{static / base:.2f} ({setting[0]}, {setting[1]:g})",
                    *(f"{auto / base:.2f}", f"{auto / static:.3f}", f"{auto / fixed:.3f}", f"{auto / bound:.2f}"),
                )
                print(f"| {' | '.join(columns)} |")
        print()
    print(f"{len(all_static)} cells; geometric means: auto / best static {geometric_mean(all_static):.3f},", end=" ")
    print(f"auto / best fixed {geometric_mean(all_fixed):.3f}. Under 0.99: {'; '.join(missed) or 'none'}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    (record_all if options.record else measure if options.measure else tables)()


if __name__ == "__main__":
    main()
