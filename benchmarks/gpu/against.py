"""llama.cpp's own speculation at its best static settings, against specdec, which finds its draft length itself.

A server is started for each setting and asked the first prompts of every category at every temperature; then, in
each of these cells, its best settings are asked everything, and the best of all is what specdec meets: in
llama-server and in llama-speculative-simple, whose drafting is the same. What is done is in the file at once, so
that a call that was cut short goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from best_static import FINALISTS, SWEPT, Result, match
from peers import SpeculativeSimple, Static, Task, by_prompt, progress
from server import WARM_UP_TOKENS, LlamaServer, Servers
from static_sweep import Speeds, finals

from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session

N_MAX = (1, 2, 3, 4, 6, 8, 12, 16)
P_MIN = (0.0, 0.5, 0.75, 0.9)
GRID = tuple(Static(n_max, p_min) for p_min in P_MIN for n_max in N_MAX if n_max > 1 or not p_min)
"""With a draft of one token p_min leaves out single drafts; that gains next to nothing."""

Tasks = Mapping[str, Sequence[Task]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, where it is kept, and whether there is time for more."""

    out: Path
    temps: Sequence[float]
    tasks: Tasks
    rounds: int
    has_time: Callable[[], bool]

    def load(self) -> dict[str, Any]:
        """What is there from an earlier call."""
        found: dict[str, Any] = json.loads(self.out.read_text()) if self.out.is_file() else {"sweep": {}, "cells": {}}
        return found

    def keep(self, found: Mapping[str, Any]) -> None:
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(self.out)


def cell(temp: float, category: str) -> str:
    return f"{temp:g} {category}"


def sweep(plan: Plan, servers: Servers, session: Session, grid: Sequence[Static]) -> bool:
    """Ask each setting what was not asked yet; whether all are through."""
    found = plan.load()
    for static in grid:
        kept = found["sweep"].setdefault(
            str(static), {"n_max": static.n_max, "p_min": static.p_min, "tokens_per_s": {}}
        )
        speeds: dict[str, float] = kept["tokens_per_s"]
        missing = [(t, name) for t in plan.temps for name in plan.tasks if cell(t, name) not in speeds]
        if missing and not plan.has_time():
            return False
        for temp, category in missing:
            peer = LlamaServer(servers, replace(session.settings, temp=temp))
            answers = [(task.id, peer.answer(task, static, 1)) for task in plan.tasks[category][:SWEPT]]
            counted = by_prompt((name, answer.tokens_per_s) for name, answer in answers if answer.counts)
            speeds[cell(temp, category)] = sum(counted) / len(counted) if counted else 0.0
        if missing:
            plan.keep(found)
            progress(f"{static}: " + ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items()))
    return True


def finalists(swept: Mapping[str, Mapping[str, Any]], name: str) -> list[Static]:
    """The best settings of a cell, the fastest first."""
    ranked = sorted(swept.values(), key=lambda one: float(one["tokens_per_s"].get(name, 0.0)), reverse=True)
    return [Static(one["n_max"], one["p_min"]) for one in ranked[:FINALISTS]]


def matches(plan: Plan, servers: Servers, session: Session, simple: str, flags: tuple[str, ...]) -> bool:
    """The finals and the match of each cell that has had none; whether all are through."""
    found = plan.load()
    for temp in plan.temps:
        settings = replace(session.settings, temp=temp)
        for category, tasks in plan.tasks.items():
            name = cell(temp, category)
            if name in found["cells"]:
                continue
            if not plan.has_time():
                return False
            warm_up(session, tasks[0], settings)
            server = LlamaServer(servers, settings)
            final = finals(server, tasks, finalists(found["sweep"], name), plan.rounds)
            best = final.ranked()[0]
            results = {"llama-server": Result(category, final, final, match(server, best, session, tasks, plan.rounds))}
            if simple:
                peer = SpeculativeSimple(simple, settings, flags)
                trials = match(peer, best, session, tasks, plan.rounds)
                results["llama-speculative-simple"] = Result(category, Speeds(peer), final, trials)
            found["cells"][name] = {"temp": temp, "category": category, "best": str(best), "against": told(results)}
            plan.keep(found)
            progress(f"{name}: " + ", ".join(f"{peer} {its['ratio']:.2f}" for peer, its in told(results).items()))
    return True


def warm_up(session: Session, task: Task, settings: Settings) -> None:
    """A short answer of each kind, thrown away: a GPU loads what it computes with when it is first used."""
    for way in (settings, settings.alone()):
        for _ in session.events(task.tokens, 1, settings=replace(way, max_tokens=WARM_UP_TOKENS)):
            pass


def told(results: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    """Of each peer the speeds and ratios, medians over prompts; nothing where no answer was long enough."""
    return {
        peer: {
            "prompts": len({trial.prompt for trial in result.counted}),
            "peer": result.speed("peer"),
            "specdec": result.speed("specdec"),
            "alone": result.speed("alone"),
            "ratio": result.ratio("specdec", "peer"),
            "gain": result.ratio("specdec", "alone"),
            "trials": result.to_json()["match"],
        }
        for peer, result in results.items()
        if result.counted
    }
