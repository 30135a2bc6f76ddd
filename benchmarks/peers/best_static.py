"""specdec, which chooses its draft length itself, against llama.cpp's own speculation at its best static settings.

    benchmarks/peers/build_llama_cpp.sh FOLDER llama-server
    python benchmarks/peers/best_static.py --server FOLDER/build/bin/llama-server --out peers.json

For each category of the suite and each temperature:

1. Sweep: llama-server answers two prompts with every setting of GRID.
2. Finals: the best three settings on all prompts, interleaved. The best has the highest median of tokens/s.
3. Match: that setting, specdec and specdec's target alone, interleaved per prompt in alternating order. Ratios are
   taken within a round of a prompt; each prompt counts with the median of its rounds. --simple adds a match with
   llama-speculative-simple, which drafts like the server, at the same setting.

Speeds are those that each tool reports for decoding alone. Sampled answers differ between the tools, so tokens/s are
compared, not seconds, and answers under 16 tokens are left out. The peer's best setting is chosen with the prompts and
seeds of the match, which favours the peer. Measurements are written to --out at once, so if a run was interrupted, or
--seconds ended it, the same command continues it.

    python benchmarks/peers/best_static.py --simple FOLDER/build/bin/llama-speculative-simple --equal 1 3 8

compares both tools with drafts of the same fixed lengths, greedily, on all prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import add_models, head, machine, open_demo, progress, row, spread
from peers import (
    WARM_UP_TOKENS,
    Answer,
    LlamaServer,
    Peer,
    SpeculativeSimple,
    Static,
    Task,
    interleaved,
    specdec,
    tasks_of,
)

from specdec_cli.engine.session import Session
from specdec_cli.llama import host
from specdec_cli.settings.config import Settings

SWEPT = 2
"""Prompts of each category that the sweep uses."""
FINALISTS = 3
N_MAX = (1, 2, 3, 4, 6, 8, 12, 16)
P_MIN = (0.0, 0.5, 0.75, 0.9)
GRID = tuple(Static(n_max, p_min) for p_min in P_MIN for n_max in N_MAX if n_max > 1 or not p_min)
"""With drafts of one token, p_min gains next to nothing, so it isn't swept."""
IN_MATCH = ("peer", "specdec", "alone")

Trial = tuple[str, dict[str, Answer]]
"""A prompt's name, and each tool's answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, where results are saved, and whether there is time for more."""

    out: Path
    temps: Sequence[float]
    tasks: Mapping[str, Sequence[Task]]
    rounds: int
    has_time: Callable[[], bool]

    def load(self) -> dict[str, Any]:
        """The results of earlier runs."""
        found: dict[str, Any] = {"machine": machine(), "sweep": {}, "cells": {}}
        return json.loads(self.out.read_text()) if self.out.is_file() else found

    def keep(self, found: Mapping[str, Any]) -> None:
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(self.out)


def cell(temp: float, category: str) -> str:
    return f"{temp:g} {category}"


def sweep(plan: Plan, peer: Peer, settings: Settings, grid: Sequence[Static]) -> bool:
    """Measure each setting where it hasn't been measured yet. Returns whether all are done."""
    found = plan.load()
    for static in grid:
        kept = found["sweep"].setdefault(str(static), {**asdict(static), "tokens_per_s": {}})
        speeds: dict[str, float] = kept["tokens_per_s"]
        missing = [(t, name) for t in plan.temps for name in plan.tasks if cell(t, name) not in speeds]
        if missing and not plan.has_time():
            return False
        for temp, category in missing:
            answers = [
                peer.answer(task, static, replace(settings, temperature=temp), 1)
                for task in plan.tasks[category][:SWEPT]
            ]
            counted = [answer.tokens_per_s for answer in answers if answer.counts]
            speeds[cell(temp, category)] = statistics.mean(counted) if counted else 0.0
        if missing:
            plan.keep(found)
            progress(f"{static}: " + ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items()))
    return True


def finalists(swept: Mapping[str, Mapping[str, Any]], name: str) -> list[Static]:
    """The best settings of a cell, the fastest first."""
    ranked = sorted(swept.values(), key=lambda one: float(one["tokens_per_s"].get(name, 0.0)), reverse=True)
    return [Static(one["n_max"], one["p_min"]) for one in ranked[:FINALISTS]]


def best_of(
    peer: Peer, tasks: Sequence[Task], statics: Sequence[Static], settings: Settings, rounds: int
) -> tuple[Static, float]:
    """The fastest of a few settings on all prompts, and its tokens per second."""
    speeds: dict[Static, list[tuple[str, float]]] = {static: [] for static in statics}
    for i, task, order in interleaved(tasks, statics, rounds):
        for static in order:
            answer = peer.answer(task, static, settings, i + 1)
            if answer.counts:
                speeds[static].append((task.id, answer.tokens_per_s))
    medians = {static: statistics.median(by_prompt(found) or [0.0]) for static, found in speeds.items()}
    best = max(medians, key=medians.__getitem__)
    return best, medians[best]


def match(
    peer: Peer, static: Static, session: Session, settings: Settings, tasks: Sequence[Task], rounds: int
) -> list[Trial]:
    """Measure the peer at its best setting, specdec, and specdec's target alone."""
    trials = []
    for i, task, order in interleaved(tasks, IN_MATCH, rounds):
        answers = {}
        for name in order:
            if name == "peer":
                answers[name] = peer.answer(task, static, settings, i + 1)
            else:
                answers[name] = specdec(session, task, settings if name == "specdec" else settings.alone(), i + 1)
        trials.append((task.id, answers))
    return trials


def by_prompt(values: Iterable[tuple[str, float]]) -> list[float]:
    """One value per prompt, the median of its rounds. values: pairs of a prompt's name and a value."""
    rounds: dict[str, list[float]] = {}
    for prompt, value in values:
        rounds.setdefault(prompt, []).append(value)
    return [statistics.median(found) for found in rounds.values()]


def summary(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Speeds and ratios, medians over prompts; None if no answer was long enough."""
    counted = [trial for trial in trials if all(answer.counts for answer in trial[1].values())]
    if not counted:
        return None

    def ratios(name: str, to: str) -> list[float]:
        return by_prompt((prompt, found[name].tokens_per_s / found[to].tokens_per_s) for prompt, found in counted)

    speeds = {
        name: statistics.median(by_prompt((prompt, found[name].tokens_per_s) for prompt, found in counted))
        for name in IN_MATCH
    }
    against, gain = ratios("specdec", "peer"), ratios("specdec", "alone")
    return {
        **speeds,
        "prompts": len(against),
        "ratio": statistics.median(against),
        "gain": statistics.median(gain),
        "shown": [spread(against), spread(gain)],
        "trials": [[prompt, {name: asdict(answer) for name, answer in found.items()}] for prompt, found in trials],
    }


def matches(plan: Plan, server: Peer, simple: Peer | None, session: Session) -> bool:
    """Run the finals and the match of each cell that has none yet. Returns whether all are done."""
    found = plan.load()
    for temp in plan.temps:
        settings = replace(session.settings, temperature=temp)
        for category, tasks in plan.tasks.items():
            name = cell(temp, category)
            if name in found["cells"]:
                continue
            if not plan.has_time():
                return False
            for variant in (settings, settings.alone()):  # a warm-up: a GPU loads its kernels when they are first used
                specdec(session, tasks[0], replace(variant, max_tokens=WARM_UP_TOKENS))
            best, speed = best_of(server, tasks, finalists(found["sweep"], name), settings, plan.rounds)
            peers = {"llama-server": server, **({"llama-speculative-simple": simple} if simple else {})}
            met = {
                peer: summary(match(tool, best, session, settings, tasks, plan.rounds)) for peer, tool in peers.items()
            }
            against = {peer: its for peer, its in met.items() if its}
            found["cells"][name] = {
                **{"temp": temp, "category": category, "best": str(best), "tokens_per_s": speed},
                "against": against,
            }
            plan.keep(found)
            progress(f"{name}: " + ", ".join(f"{peer} {its['ratio']:.2f}" for peer, its in against.items()))
    return True


def table(data: Mapping[str, Any]) -> str:
    """Each cell's match with each peer, and geometric means over the cells of a temperature."""
    lines = [head("cell", "best static", "peer", "prompts", "peer's", "specdec", "alone", "specdec / peer", "/ alone")]
    means: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for name, found in data["cells"].items():
        for peer, its in found["against"].items():
            speeds = (float(its[key]) for key in IN_MATCH)
            lines.append(row(name, found["best"], peer, its["prompts"], *speeds, *its["shown"]))
            means.setdefault((found["temp"], peer), []).append((its["ratio"], its["gain"]))
    for (temp, peer), ratios in means.items():
        cells = (f"{statistics.geometric_mean(column):.2f}" for column in zip(*ratios, strict=True))
        lines.append(row(f"{temp:g}, geometric mean", "", peer, *[""] * 4, *cells))
    return "\n".join([*lines, f"\n{len(data['sweep'])} settings swept."])


def equal(peer: Peer, session: Session, tasks: Mapping[str, Sequence[Task]], k: int, rounds: int) -> str:
    """A table row: the peer and specdec with drafts of k tokens, greedy."""
    settings = replace(session.settings, temperature=0.0, draft_tokens=k)
    trials = match(peer, Static(k), session, settings, [task for each in tasks.values() for task in each], rounds)
    its = summary(trials)
    if its is None:
        raise SystemExit("no answer was long enough")
    accepted = (statistics.mean(found[name].acceptance for _, found in trials) for name in ("peer", "specdec"))
    return row(k, its["alone"], its["peer"], its["specdec"], its["shown"][0], *(f"{each:.2f}" for each in accepted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--server", default=shutil.which("llama-server"), help="path; by default from PATH")
    parser.add_argument("--simple", default=shutil.which("llama-speculative-simple"), help="path; by default from PATH")
    parser.add_argument("--peer-flags", type=shlex.split, default=[], metavar="'FLAGS'", help="such as '-ngl 999'")
    parser.add_argument("--equal", type=int, nargs="+", default=[], metavar="K", help="draft tokens of both tools")
    parser.add_argument("--out", type=Path, default=Path("peers.json"), metavar="FILE.json")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument("--prompts", default="python", help="a suite's name or a file of prompts")
    parser.add_argument("--category", action="append", default=[], help="only this one; can be repeated")
    parser.add_argument("--per-category", type=int, metavar="N", help="the most prompts per category")
    parser.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--tokens", type=int, default=128, help="the most tokens of an answer")
    parser.add_argument("--threads", type=int, default=host.physical_cores())
    parser.add_argument("--repeat", type=int, default=2, help="rounds over the prompts")
    parser.add_argument("--loaded", type=int, default=3, metavar="N", help="the most servers in memory at once")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="sweep only every Nth setting")
    options = parser.parse_args()
    if not options.server and not (options.simple and options.equal):
        parser.error("there is no llama-server in PATH: use --server")
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # lazy loading would slow tools that start for each answer
    began, flags = monotonic(), tuple(options.peer_flags)
    models = {"target": options.target, "draft": options.draft, "draft_tokens": "auto"}
    lengths = [{"draft_tokens": k} for k in options.equal]
    print(f"{machine()}, {options.threads} threads, at most {options.tokens} tokens\n")
    with (
        open_demo(lengths, threads=options.threads, max_tokens=options.tokens, **models) as session,
        closing(LlamaServer(options.server, flags, options.loaded)) as server,
    ):
        simple = SpeculativeSimple(options.simple, flags) if options.simple else None
        tasks = tasks_of(session, options.prompts, options.category, options.per_category)
        if options.equal:
            print(head("draft tokens", "alone", "peer", "specdec", "specdec / peer", "acceptance, peer", "specdec"))
            for k in options.equal:
                print(equal(simple or server, session, tasks, k, options.repeat), flush=True)
            return
        plan = Plan(options.out, options.temps, tasks, options.repeat, lambda: monotonic() - began < options.seconds)
        swept = sweep(plan, server, session.settings, GRID[:: options.every])
        finished = swept and matches(plan, server, simple, session)
    progress("everything is measured" if finished else "out of time: run it again to continue")
    print(table(plan.load()))


if __name__ == "__main__":
    main()
