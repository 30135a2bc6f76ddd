"""Every draft-length policy with every machine's costs, from recordings: deterministic, without a model.

    python benchmarks/simulate.py                  # Markdown tables of all recordings that come with specdec
    python benchmarks/simulate.py FOLDER --brief   # a summary of the recordings in a folder
    python benchmarks/simulate.py --record         # record the bundled pair again (minutes; changes the figures)

A cell is one machine, one category of the suite and one temperature. In each, `auto` runs once through all answers and
at first knows only the costs. The best fixed length (k = 0 to 16) and the best static setting (k and min-p 0, 0.5,
0.75, 0.9) are the best ones for that cell in hindsight. The clairvoyant drafts only tokens that will be accepted, as
far as they pay. Recorded greedy text starts at several positions of sampled answers, because directly after the prompts
this small model soon falls into loops; loops are left out. The recordings of real models (profiles/recordings) were
made by a script in git's history. If a recording has the tokens of the texts, the real `ngram` drafter runs on them,
created anew for each answer, with the same curves; a search for a draft costs LOOK.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean

from cascade import cascaded
from common import DEMO, open_demo
from hindsight import Static, best, clairvoyant, known, known_statics, statics

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import hardware, suites
from specdec_cli.measure import simulate as simulation
from specdec_cli.measure.acceptance_traces import Recording, record
from specdec_cli.measure.hardware import Hardware
from specdec_cli.measure.simulate import Answer

RECORDINGS, REAL = DEMO / "recordings", DEMO.parent / "recordings"
LOOK = Curve({1: 15e-6})
"""Seconds that `ngram` takes to search for a draft: the median on two shared cores of an AMD EPYC; most find none."""
BAR = 0.99
WITHOUT_A_DRAFT_MODEL = "epyc-2core-smollm2"
SAMPLED_TOKENS, GREEDY_TOKENS = 96, 64
CUTS = (0, 24, 48, 72)
SEEDS = (1, 2)
TEMPERATURE = 0.8


def record_all() -> None:
    """Record the bundled pair on the suite: sampled by both rules, and greedy."""
    about = {"target": "target.gguf", "draft": "draft.gguf", "suite": "python"}
    greedy: list[Answer] = []
    for rule in ("coupled", "rejection"):
        sampled: list[Answer] = []
        with open_demo(temperature=TEMPERATURE, max_tokens=SAMPLED_TOKENS, accept=rule) as session:
            cold = replace(session.settings, temperature=0.0, max_tokens=GREEDY_TOKENS)
            for prompt, seed in product(suites.load("python"), SEEDS):
                start = session.tokenize(prompt.text, raw=True)
                answer, tokens = record(session, start, session.settings, seed, prompt.category)
                sampled.append(answer)
                for cut in CUTS[seed != SEEDS[0] :] if rule == "rejection" else ():
                    greedy.append(record(session, start + tokens[:cut], cold, seed, prompt.category)[0])
        sampling = f"temperature {TEMPERATURE}, top-k 40, top-p 0.95, min-p 0.05, {rule}"
        recording = Recording(False, tuple(sampled), {**about, "sampling": sampling})
        recordings.write(RECORDINGS / f"{rule}.json.gz", recording)
    long_enough = [answer for answer in greedy if len(answer.accepted) >= 16]
    recordings.write(RECORDINGS / "greedy.json.gz", Recording(True, tuple(long_enough), about))


@dataclass(frozen=True)
class Cell:
    """One machine, one category, one recording. Speedups over the target alone; best: the best static setting."""

    machine: str
    category: str
    fixed: float
    fixed_k: int
    best: float
    setting: Static
    auto: float
    bound: float | None

    def row(self) -> str:
        columns = (
            *(self.machine, self.category, f"{self.fixed:.2f} ({self.fixed_k})"),
            *(f"{self.best:.2f} ({self.setting[0]}, {self.setting[1]:g})", f"{self.auto:.2f}"),
            *(f"{self.auto / self.best:.3f}", f"{self.auto / self.fixed:.3f}"),
            f"{self.auto / self.bound:.2f}" if self.bound else "",
        )
        return f"| {' | '.join(columns)} |"


def cells_of(recording: Recording, machines: Iterable[Hardware]) -> Iterator[Cell]:
    """Every cell of the pair's answers."""
    machines = [found for found in machines if found.name != WITHOUT_A_DRAFT_MODEL]
    for category, answers in simulation.by_category(recording.answers).items():
        tallies = statics(answers)
        for found in machines:
            auto = simulation.adaptive(answers, found.costs, recording.greedy).tokens_per_s(found.costs)
            yield _cell(found.name, category, tallies, found.costs, auto, clairvoyant(answers, found.costs))


def ngram_cells_of(recording: Recording, machines: Iterable[Hardware]) -> Iterator[Cell]:
    """Every cell of the texts, with the drafter `ngram`."""
    for category, texts in simulation.by_category(recording.texts).items():
        tallies = known_statics(NgramDrafter, texts)
        for found in machines:
            costs = replace(found.costs, draft=LOOK)
            auto = known(NgramDrafter, texts, costs).tokens_per_s(costs)
            yield _cell(found.name, category, tallies, costs, auto, None)


def cascade_cells_of(recording: Recording, machines: Iterable[Hardware]) -> Iterator[str]:
    """`-k auto` with `ngram+model`, by machine: each category's speedup over the target alone."""
    for found in machines:
        pairs = simulation.by_category(recording.texts).values(), simulation.by_category(recording.answers).values()
        speeds = [cascaded(zip(*both, strict=True), found.costs, LOOK) for both in zip(*pairs, strict=True)]
        yield f"| {found.name} | " + " | ".join(f"{speed * found.costs.verify(1):.2f}" for speed in speeds) + " |"


def _cell(
    name: str,
    category: str,
    tallies: dict[Static, simulation.Tally],
    costs: Costs,
    auto: float,
    bound: float | None,
) -> Cell:
    base = tallies[0, 0.0].tokens_per_s(costs)
    (k, _), fixed = best(tallies, costs, (0.0,))
    setting, static = best(tallies, costs)
    return Cell(name, category, fixed / base, k, static / base, setting, auto / base, bound and bound / base)


def show(title: str, cells: list[Cell], brief: bool) -> None:
    """Print a table of cells and a summary."""
    print(f"**{title}**, speedup over the target alone\n")
    if not brief:
        print(
            "| machine | category | best fixed k | best static (k, min-p) | auto | auto / static | auto / fixed |",
            end="",
        )
        print(" share of the clairvoyant's |\n|---|---|---|---|---|---|---|---|")
        print("\n".join(cell.row() for cell in cells), end="\n\n")
    static, alone = [cell.auto / cell.best for cell in cells], [cell.auto for cell in cells]
    missed = [
        f"{cell.machine} {cell.category} {cell.auto / cell.best:.3f}" for cell in cells if cell.auto < BAR * cell.best
    ]
    print(f"{len(cells)} cells. Against the target alone: worst {min(alone):.3f},", end=" ")
    print(f"{sum(ratio < BAR for ratio in alone)} under {BAR}, geometric mean {geometric_mean(alone):.3f}.", end=" ")
    print(f"Against the best static setting: worst {min(static):.3f}, {len(missed)} under {BAR},", end=" ")
    print(f"geometric mean {geometric_mean(static):.3f}; against the best fixed length", end=" ")
    print(f"{geometric_mean(cell.auto / cell.fixed for cell in cells):.3f}.", end=" ")
    print("" if brief else f"Under {BAR}: {'; '.join(missed) or 'none'}.", end="\n\n")


def tables(folders: Iterable[Path], brief: bool) -> None:
    """Print a table for each recording in each folder: of the draft model, and of `ngram` if it has texts."""
    machines = [hardware.load(name) for name in hardware.names()]
    for folder in folders:
        for path in sorted(folder.glob("*.json.gz")):
            recording = recordings.read(path)
            title = (
                f"{folder.parent.name if folder == RECORDINGS else folder.name}, {path.name.removesuffix('.json.gz')}"
            )
            if recording.answers:
                show(f"{title}, model", list(cells_of(recording, machines)), brief)
            if recording.texts:
                show(f"{title}, ngram", list(ngram_cells_of(recording, machines)), brief)
            if recording.answers and recording.texts and recording.greedy:
                print(f"**{title}, ngram+model**, speedup over the target alone\n")
                print(f"| machine | {' | '.join(simulation.by_category(recording.texts))} |")
                print("\n".join(cascade_cells_of(recording, machines)), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of recordings; by default all that come with specdec")
    parser.add_argument("--brief", action="store_true", help="only the summaries")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    folders = options.folders or [RECORDINGS, *sorted(REAL.iterdir())]
    if options.record:
        record_all()
    else:
        tables(folders, options.brief)


if __name__ == "__main__":
    main()
