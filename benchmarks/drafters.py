"""Every drafter and tree on every category, as if on other machines: the real loop, models and policies, another clock.

    python benchmarks/drafters.py [--machines NAME,...] [--tokens N] [--temp T] [--trees]

The bundled pair really decodes; only the clock is not ours: each pass advances it by what a pass over so many tokens
takes on a machine of profiles/hardware. Where its curve ends, beyond some 17 tokens, it is drawn on at its steepest,
which is hard on lookahead. The time of what needs no model is left out. Greedy answers begin after 24 sampled tokens,
for from the prompts alone the small model soon falls into loops.

--trees: instead, tokens a step of trees and chains of as many tokens, drafted in the same places of the target's own
answers: expected values over what may be accepted, given the draft, so that the dice play no part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from common import geometric_mean, open_demo

from specdec_cli.decoding.accept import rejection, residual
from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft, Logits, Step, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine.config import AUTO, Settings
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure import hardware, suites
from specdec_cli.measure.acceptance_recorder import before_a_loop

ARMS: dict[str, dict[str, Any]] = {
    "model": {},
    "model, tree=2": {"tree": 2},
    "model, tree=4": {"tree": 4},
    "ngram": {"drafter": "ngram"},
    "ngram+model": {"drafter": "ngram+model"},
    "model<ngram": {"drafter": "model<ngram"},
    "lookahead": {"drafter": "lookahead"},
    "lookahead 8:4:8": {"drafter": "lookahead", "lookahead": "8:4:8"},
}
TREES = [(k, width) for k in (4, 8) for width in (1, 2, 3, 4)]
CUT, EVERY = 24, 3


class Clock:
    """Time on another machine."""

    def __init__(self) -> None:
        self.costs: Costs | None = None
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A context whose passes take the time that they take elsewhere."""

    def __init__(self, context: LlamaContext, clock: Clock, of_target: bool) -> None:
        self._context, self._clock, self._of_target = context, clock, of_target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Any:
        self._pass(len(tokens))
        return self._context.decode(tokens, all_rows)

    def grow(self, tokens: Sequence[int], parents: Sequence[int], unread: int = 0) -> Any:
        self._pass(len(tokens))
        return self._context.grow(tokens, parents, unread)

    def _pass(self, tokens: int) -> None:
        if costs := self._clock.costs:
            self._clock.now += costs.verify(tokens) + costs.other if self._of_target else costs.draft(tokens)


class Elsewhere:
    """An session of the bundled pair on any machine."""

    def __init__(self, tokens: int, temp: float, seeds: int) -> None:
        self.seeds = seeds
        self.clock = Clock()
        self.session = open_demo(max_tokens=tokens, temp=temp, draft_tokens=AUTO, threads=1)
        ways = [replace(self.session.settings, **arm) for arm in ARMS.values()]
        ways += [replace(self.session.settings, draft_tokens=k, tree=width) for k, width in TREES]
        self.session.open(1, ways)
        self.session.clock = self.clock
        self.session.keep_costs = lambda: None  # type: ignore[method-assign]
        target, draft = self.session.models.contexts
        self.session.models.target.context = Timed(target, self.clock, True)  # type: ignore[assignment]
        self.session.models.draft.context = Timed(draft, self.clock, False)  # type: ignore[assignment]

    def go_to(self, costs: Costs) -> None:
        """Be on a machine where nothing has been learned yet."""
        self.clock.costs = costs
        models = self.session.models
        models.tuned_costs, models.tuning = replace(costs, other=0.0), None
        self.session.drafting.forget()

    def answers(self, way: Settings, prompts: Iterable[tuple[str, list[int]]]) -> dict[str, list[Metrics]]:
        """Reports by category; several of each prompt where they are sampled."""
        found: dict[str, list[Metrics]] = {}
        for number, (category, prompt) in enumerate(prompts):
            for seed in range(self.seeds if way.temp else 1):
                events = self.session.events(prompt, 1000 * seed + number, settings=way)
                found.setdefault(category, []).append(Metrics.of(events))
        return found


def prompts_of(elsewhere: Elsewhere, seed: int = 1) -> list[tuple[str, list[int]]]:
    """The suite's prompts; greedily, each with the beginning of an answer sampled with the seed."""
    session = elsewhere.session
    found = []
    for prompt in suites.load("python"):
        ids = session.tokenize(prompt.text, raw=True)
        if session.settings.temp == 0:
            sampled = replace(session.settings.alone(), temp=0.8, max_tokens=CUT)
            events = session.events(ids, seed, settings=sampled)
            ids += [token.id for event in events if isinstance(event, Step) for token in event.tokens]
        found.append((prompt.category, ids))
    return found


def tokens_per_step(reports: Iterable[Metrics]) -> float:
    found = list(reports)
    return sum(report.emitted - 1 for report in found) / max(sum(report.steps for report in found), 1)


def acceptance(reports: Iterable[Metrics]) -> str:
    found = list(reports)
    drafted = sum(report.drafted for report in found)
    return f"{sum(report.accepted for report in found) / drafted:.0%}" if drafted else "-"


def speed(reports: Iterable[Metrics]) -> float:
    """Tokens per second after the first."""
    found = list(reports)
    return sum(report.emitted - 1 for report in found) / sum(report.decode_s for report in found)


def compare_drafters(elsewhere: Elsewhere, machines: list[str]) -> None:
    """Speedups by machine and category, and how `ngram+model` stands to the better of its parts."""
    prompts = prompts_of(elsewhere)
    base = elsewhere.session.settings
    ratios = []
    for name in machines:
        found: dict[str, dict[str, list[Metrics]]] = {}
        elsewhere.go_to(hardware.load(name).costs)
        alone = elsewhere.answers(base.alone(), prompts)
        for arm, changes in ARMS.items():
            elsewhere.go_to(hardware.load(name).costs)
            found[arm] = elsewhere.answers(replace(base, **changes), prompts)
        print(f"\n**{name}**, speedup (acceptance, tokens/step)\n")
        print(f"| category | {' | '.join(ARMS)} |\n|---{'|---' * len(ARMS)}|")
        for category, own in alone.items():
            reports = [by[category] for by in found.values()]
            cells = [
                f"{speed(each) / speed(own):.2f} ({acceptance(each)}, {tokens_per_step(each):.2f})" for each in reports
            ]
            print(f"| {category} | {' | '.join(cells)} |")
            better = max(speed(found[part][category]) for part in ("model", "ngram"))
            ratios.append((speed(found["ngram+model"][category]) / better, f"{name} {category}"))
        everything = {arm: [report for reports in by.values() for report in reports] for arm, by in found.items()}
        own = [report for reports in alone.values() for report in reports]
        print(f"| all | {' | '.join(f'{speed(reports) / speed(own):.2f}' for reports in everything.values())} |")
    least = min(ratios)
    low = [f"{where} {ratio:.3f}" for ratio, where in sorted(ratios) if ratio < 0.98]
    print(
        f"\nngram+model over the better of the two: mean {geometric_mean(ratio for ratio, _ in ratios):.3f}, ", end=""
    )
    print(f"least {least[0]:.3f} ({least[1]}); under 0.98: {', '.join(low) or 'none'} of {len(ratios)}")


def compare_trees(elsewhere: Elsewhere) -> None:
    """Trees and chains of as many tokens, drafted in the very same places: tokens a step to be expected there."""
    session, base = elsewhere.session, elsewhere.session.settings
    found: dict[tuple[int, int], dict[str, list[float]]] = {shape: {} for shape in TREES}
    policies = {shape: FixedLength(shape[0], greedy=base.temp == 0) for shape in TREES}
    target, draft = LlamaTarget(session.models.contexts[0]), session.models.contexts[1]
    for seed in range(elsewhere.seeds):
        for category, prompt in prompts_of(elsewhere, seed + 1):
            events = session.events(prompt, seed, settings=base.alone())
            answer = [token.id for event in events if isinstance(event, Step) for token in event.tokens]
            for place in range(1, before_a_loop(answer), EVERY):
                context = prompt + answer[:place]
                sampler = StandardSampler(base.sampling)
                sampler.watch(context)
                target.prefill(context[:-1])
                for (k, width), policy in policies.items():
                    rng = np.random.default_rng((seed, place))
                    drafter = ModelDrafter(draft, session.pair.n_shared, sampler, True, rng, width)
                    drafter.start(context)
                    drafted = drafter.propose(context, policy.limit(k), policy)
                    logits = np.stack(list(target.verify(context[-1], drafted)))  # type: ignore[call-overload]
                    mean = 1.0 + _below(-1, (), drafted, logits, sampler)
                    found[k, width].setdefault(category, []).append(mean)
                    verdict = rejection(drafted, logits, sampler, rng)
                    policy.observe(_step_of(drafted, verdict))
                    target.commit(replace(verdict, path=()))
                    session.models.contexts[0].rewind(len(context) - 1)
    categories = list(found[TREES[0]])
    print(f"| tokens, branches | {' | '.join(categories)} |\n|---{'|---' * len(categories)}|")
    for (k, width), by in found.items():
        cells = []
        for name in categories:
            chain, mine = np.array(found[k, 1][name]), np.array(by[name])
            error = (mine - chain).std(ddof=1) / len(mine) ** 0.5
            gain = f" ({(mine - chain).mean():+.3f} +- {error:.3f})" if width > 1 else ""
            cells.append(f"{mine.mean():.3f}{gain}")
        print(f"| {k}, {width} | {' | '.join(cells)} |")
    print(f"\n{sum(map(len, found[TREES[0]].values()))} places; in brackets: the gain over the chain, its error")


def _below(node: int, ahead: tuple[int, ...], draft: Draft, logits: Logits, sampler: StandardSampler) -> float:
    """Tokens to be expected after a node, given that it stands."""
    children = draft.children(node)
    if not children:
        return 0.0
    if sampler.greedy or draft.q is None:
        token = sampler.argmax(logits[node + 1], ahead)
        right = [child for child in children if draft.tokens[child] == token]
        return 1.0 + _below(right[0], (*ahead, token), draft, logits, sampler) if right else 0.0
    p = sampler.categorical(logits[node + 1], ahead)
    expected, left = 0.0, 1.0
    for child in children:
        token, q = draft.tokens[child], draft.q[child]
        stands = min(1.0, p.prob(token) / q.prob(token))
        if stands > 0:
            expected += left * stands * (1.0 + _below(child, (*ahead, token), draft, logits, sampler))
        left *= 1.0 - stands
        p = residual(p, q)
    return expected


def _step_of(draft: Draft, verdict: Verdict) -> Step:
    path = verdict.path if draft.parents is not None else None
    return Step(1, (), draft.tokens, verdict.accepted, (), "", 0, 0, 0, 0, "", draft.parents, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(hardware.names()))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=3, help="sampled answers to each prompt")
    parser.add_argument("--trees", action="store_true")
    options = parser.parse_args()
    elsewhere = Elsewhere(options.tokens, options.temp, options.seeds)
    print(f"temperature {options.temp:g}, {options.tokens} tokens")
    if options.trees:
        compare_trees(elsewhere)
    else:
        compare_drafters(elsewhere, options.machines.split(","))


if __name__ == "__main__":
    main()
