"""Every drafter on every category, as if on other machines: with the real loop, models and policies, but another clock.

    python benchmarks/drafters.py [--machines NAME,...] [--tokens N] [--temp T]

The bundled pair really decodes, but the clock is simulated: each pass advances it by the time of such a pass on a
machine of profiles/hardware. Beyond the end of its curve, at some 17 tokens, the curve continues at its steepest slope,
which is a disadvantage for lookahead. Time outside the models is left out. Greedy answers start after 24 sampled
tokens, because directly after the prompts the small model soon falls into loops.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from common import geometric_mean, head, open_demo, row

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Step
from specdec_cli.llama.context import LlamaContext
from specdec_cli.measure import hardware, suites
from specdec_cli.settings.config import Settings
from specdec_cli.settings.options import AUTO

VARIANTS: dict[str, dict[str, Any]] = {
    "model": {},
    "model, tree=2": {"tree": 2},
    "model, tree=4": {"tree": 4},
    "ngram": {"drafter": "ngram"},
    "ngram+model": {"drafter": "ngram+model"},
    "model<ngram": {"drafter": "model<ngram"},
    "lookahead": {"drafter": "lookahead"},
    "lookahead 8:4:8": {"drafter": "lookahead", "lookahead": "8:4:8"},
}
CUT = 24
"""Tokens sampled before a greedy answer."""


class Clock:
    """The time on another machine."""

    def __init__(self) -> None:
        self.costs: Costs | None = None
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A context whose passes take as long as on another machine."""

    def __init__(self, context: LlamaContext, clock: Clock, of_target: bool) -> None:
        self._context, self._clock, self._of_target = context, clock, of_target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, tokens: Sequence[int], *arguments: Any, **named: Any) -> Any:
        self._pass(len(tokens))
        return self._context.decode(tokens, *arguments, **named)

    def grow(self, tokens: Sequence[int], *arguments: Any, **named: Any) -> Any:
        self._pass(len(tokens))
        return self._context.grow(tokens, *arguments, **named)

    def _pass(self, tokens: int) -> None:
        if costs := self._clock.costs:
            self._clock.now += costs.verify(tokens) + costs.other if self._of_target else costs.draft(tokens)


class Elsewhere:
    """A session of the bundled pair on a simulated machine."""

    def __init__(self, tokens: int, temp: float, seeds: int) -> None:
        self.seeds = seeds
        self.clock = Clock()
        self.session = open_demo(max_tokens=tokens, temperature=temp, draft_tokens=AUTO, threads=1)
        self.session.open(1, [replace(self.session.settings, **its) for its in VARIANTS.values()])
        self.session.clock = self.clock
        self.session.keep_costs = lambda: None  # type: ignore[method-assign]
        target, draft = self.session.models.contexts
        self.session.models.target.text = Timed(target, self.clock, True)  # type: ignore[assignment]
        self.session.models.draft.drafting = Timed(draft, self.clock, False)  # type: ignore[assignment]

    def go_to(self, costs: Costs) -> None:
        """Switch to a machine on which nothing has been learned yet."""
        self.clock.costs = costs
        models = self.session.models
        models.tuned_costs, models.tuning = replace(costs, other=0.0), None
        self.session.drafting.forget()

    def answers(self, settings: Settings, prompts: Iterable[tuple[str, list[int]]]) -> dict[str, list[Metrics]]:
        """Metrics by category; several per prompt if answers are sampled."""
        found: dict[str, list[Metrics]] = {}
        for number, (category, prompt) in enumerate(prompts):
            for seed in range(self.seeds if settings.temperature else 1):
                events = self.session.events(prompt, 1000 * seed + number, settings=settings)
                found.setdefault(category, []).append(Metrics.of(events))
        return found


def prompts_of(elsewhere: Elsewhere, seed: int = 1) -> list[tuple[str, list[int]]]:
    """The suite's prompts; for greedy answers, each with the start of an answer sampled with the seed."""
    session = elsewhere.session
    found = []
    for prompt in suites.load("python"):
        ids = session.tokenize(prompt.text, raw=True)
        if session.settings.temperature == 0:
            sampled = replace(session.settings.alone(), temperature=0.8, max_tokens=CUT)
            events = session.events(ids, seed, settings=sampled)
            ids += [token.id for event in events if isinstance(event, Step) for token in event.tokens]
        found.append((prompt.category, ids))
    return found


def speed(reports: Iterable[Metrics]) -> float:
    """Tokens per second after the first."""
    found = list(reports)
    return sum(report.emitted - 1 for report in found) / sum(report.decode_s for report in found)


def shown(reports: list[Metrics], own: list[Metrics]) -> str:
    """A cell: the speedup over the target alone, acceptance, tokens per step."""
    drafted = sum(report.drafted for report in reports)
    accepted = f"{sum(report.accepted for report in reports) / drafted:.0%}" if drafted else "-"
    steps = sum(report.emitted - 1 for report in reports) / max(sum(report.steps for report in reports), 1)
    return f"{speed(reports) / speed(own):.2f} ({accepted}, {steps:.2f})"


def compare_drafters(elsewhere: Elsewhere, machines: list[str]) -> None:
    """Print speedups by machine and category, and the ratio of `ngram+model` to the better of its parts."""
    prompts = prompts_of(elsewhere)
    base = elsewhere.session.settings
    ratios = []
    for name in machines:
        found: dict[str, dict[str, list[Metrics]]] = {}
        for variant, settings in {"": base.alone(), **{n: replace(base, **its) for n, its in VARIANTS.items()}}.items():
            elsewhere.go_to(hardware.load(name).costs)
            by_category = elsewhere.answers(settings, prompts)
            found[variant] = by_category | {"all": [report for its in by_category.values() for report in its]}
        alone = found.pop("")
        print(f"\n**{name}**, speedup (acceptance, tokens/step)\n\n{head('category', *VARIANTS)}")
        for category, own in alone.items():
            print(row(category, *(shown(by[category], own) for by in found.values())))
            if category != "all":
                better = max(speed(found[part][category]) for part in ("model", "ngram"))
                ratios.append((speed(found["ngram+model"][category]) / better, f"{name} {category}"))
    low = [f"{where} {ratio:.3f}" for ratio, where in sorted(ratios) if ratio < 0.98]
    mean = geometric_mean(ratio for ratio, _ in ratios)
    least = f"lowest {min(ratios)[0]:.3f} ({min(ratios)[1]})"
    print(f"\nngram+model over the better of the two: mean {mean:.3f}, {least};", end=" ")
    print(f"under 0.98: {', '.join(low) or 'none'} of {len(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(hardware.names()))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=3, help="sampled answers per prompt")
    options = parser.parse_args()
    elsewhere = Elsewhere(options.tokens, options.temp, options.seeds)
    print(f"temperature {options.temp:g}, {options.tokens} tokens")
    compare_drafters(elsewhere, options.machines.split(","))


if __name__ == "__main__":
    main()
