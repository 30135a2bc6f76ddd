"""Measures a draft on prompts that its training didn't see: acceptance, costs and the expected speedup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli import drafters
from specdec_cli.decoding.costs import SETTLED, Costs, Curve
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.draft_length import DraftForm
from specdec_cli.engine.engine import one_session
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.measure import hardware
from specdec_cli.measure.suites import SuitePrompt, in_turn
from specdec_cli.measure.trials import acceptance_by_position
from specdec_cli.settings.settings import Settings

CHAIN = 4
"""Tokens of the measured drafts; in a tree, per branch."""
_ANSWER, _PROMPTS = 64, 24
"""Tokens per answer, and number of prompts."""


@dataclass(frozen=True, slots=True)
class CategoryAcceptance:
    """Acceptance on the prompts of a category. by_place: for each position, the share of drafts of at least that length
    that were accepted up to it. tokens_per_pass: per pass of the target.
    """

    category: str
    prompts: int
    passes: int
    by_place: tuple[float, ...]
    tokens_per_pass: float


@dataclass(frozen=True, slots=True)
class ExpectedSpeedup:
    """The speedup over the target alone, computed from acceptance and costs. draft_tokens: the best length; 0: none."""

    machine: str
    draft_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """A draft on prompts that its training didn't see; the last category is all of them. branches: of its trees.
    target_s: seconds of a target pass over one token. drafted_s: seconds of drafting per drafted token.
    """

    draft: str
    branches: int
    categories: tuple[CategoryAcceptance, ...]
    target_s: float
    drafted_s: float
    expected: tuple[ExpectedSpeedup, ...]


def draft_figures(
    settings: Settings, prompts: Mapping[SuitePrompt, Sequence[int]], what_if: Sequence[str], interrupt: Interrupt
) -> DraftFigures:
    """Answer the prompts greedily, with drafts of a fixed size. what_if: machines to predict the speed on. Their own
    draft costs are those of another draft, so this one is taken to cost the same share of a target pass as here.
    """
    settings = replace(settings, draft_tokens=CHAIN * settings.tree, temperature=0.0, max_tokens=_ANSWER)
    chosen = in_turn(prompts)[:_PROMPTS]
    metrics: defaultdict[str, list[Metrics]] = defaultdict(list)
    with one_session(settings, interrupt, tune=False) as session:
        session.open(max(len(tokens) for _, tokens in chosen))
        session.require_drafts("Please report this.")
        for prompt, tokens in chosen:
            metrics[prompt.category].append(Metrics.of(session.events(tokens, 0)))
            if interrupt.is_set():
                raise Interrupted
        costs = session.costs.of_pair(chosen[0][1], budget_s=3.0)
    everything = [each for several in metrics.values() for each in several]
    categories = [_acceptance(name, several) for name, several in metrics.items()]
    overall = _acceptance("all", everything)
    at_once = drafters.form(settings.cascade.names[-1]) is not DraftForm.GROWN
    draft_s = sum(each.draft_s - each.draft_prefill_s for each in everything)
    drafted = max(1, sum(each.drafted for each in everything))
    drafts = max(1, sum(sum(each.reached[:1]) for each in everything))
    machines = {"here": costs} | {name: hardware.load(name).costs for name in what_if}
    share = draft_s / (drafts if at_once else drafted) / costs.verify(1)  # of a target pass, on every machine
    machines = {name: replace(its, draft=Curve({1: share * its.verify(1)})) for name, its in machines.items()}
    return DraftFigures(
        Path(settings.draft or "").name,
        settings.tree,
        (*categories, overall) if len(categories) > 1 else (overall,),
        costs.verify(1),
        draft_s / drafted,
        tuple(_expected(name, overall, settings.tree, at_once, prices) for name, prices in machines.items()),
    )


def _expected(machine: str, overall: CategoryAcceptance, branches: int, at_once: bool, costs: Costs) -> ExpectedSpeedup:
    """The best draft length from 0 to the measured one; for trees, only these two. at_once: whether a whole draft costs
    as much as one token.
    """
    alone, speeds = costs.verify(1) + costs.other, {0: 1.0}
    tokens = {k: 1 + sum(overall.by_place[:k]) for k in range(1, len(overall.by_place) + 1)}
    for k, per_pass in (tokens if branches == 1 else {CHAIN * branches: overall.tokens_per_pass}).items():
        seconds = costs.verify_after(k + 1, SETTLED) + costs.draft(1) * (1 if at_once else k) + costs.other
        speeds[k] = per_pass * alone / seconds
    best = max(speeds, key=lambda k: speeds[k])
    return ExpectedSpeedup(machine, best, speeds[best])


def _acceptance(category: str, several: Sequence[Metrics]) -> CategoryAcceptance:
    _, by_place = acceptance_by_position(several)
    steps = sum(each.steps for each in several)
    emitted = sum(each.decoded for each in several)
    return CategoryAcceptance(category, len(several), steps, by_place[:CHAIN], emitted / max(steps, 1))
