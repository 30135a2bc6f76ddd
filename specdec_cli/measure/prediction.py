"""What speculation would come to on a machine, from a recording: by category, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.measure import simulator as simulation
from specdec_cli.measure.length_family import half_priced
from specdec_cli.measure.simulator import Answer

WORTH_IT = 1.02
"""A predicted speedup below this is none: predictions are not better than that."""
_REMEDY = 1.05
"""How many times as fast as `auto` is now a change must make it to be worth a mention."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One category. Speedups are tokens per second over the target alone's; best_k: the best fixed length."""

    category: str
    tokens: int
    acceptance: float
    """The share of places where the draft's first token stands."""
    tokens_per_step: float
    alone_tokens_per_s: float
    auto: float
    best_k: int
    fixed: float


def predict(by_category: Mapping[str, Sequence[Answer]], costs: Costs, greedy: bool) -> list[Prediction]:
    """Each category with enough to go on, then all of them together."""
    everything = [answer for answers in by_category.values() for answer in answers]
    each = [_predict(category, answers, costs, greedy) for category, answers in by_category.items()]
    return [*each, _predict("all", everything, costs, greedy)] if len(each) != 1 else each


def _predict(category: str, answers: Sequence[Answer], costs: Costs, greedy: bool) -> Prediction:
    speeds = {k: tally.tokens_per_s(costs) for k, tally in simulation.fixed(answers).items()}
    best_k = max(speeds, key=lambda k: speeds[k])
    auto = simulation.adaptive(answers, costs, greedy)
    stands = [stands for answer in answers for stands in answer.stands]
    return Prediction(
        category=category,
        tokens=len(stands),
        acceptance=sum(stands) / len(stands),
        tokens_per_step=auto.tokens / auto.verified.total(),
        alone_tokens_per_s=speeds[0],
        auto=auto.tokens_per_s(costs) / speeds[0],
        best_k=best_k,
        fixed=speeds[best_k] / speeds[0],
    )


def calibrate(answers: Sequence[Answer], greedy: bool) -> Calibration:
    """What `auto` may begin with for this pair: everything the recording shows of its confidence."""
    calibration = Calibration.prior(greedy)
    for answer in answers:
        for confidence, stands in zip(answer.confidence, answer.stands, strict=True):
            at = bin_of(confidence)
            calibration.observe_confidence(at)
            calibration.learn(at, float(stands))
    return calibration


def verdict(
    predictions: Sequence[Prediction], answers: Sequence[Answer], costs: Costs, greedy: bool, where: str
) -> list[str]:
    """In plain words: whether to use the pair there, for what, and what would change that."""
    overall = predictions[-1]
    parts = predictions[:-1] or predictions
    gains = [each for each in parts if each.auto >= WORTH_IT]
    names = ", ".join(f"{each.category} ({each.auto:.2f}x)" for each in gains)
    pays = f"This pair pays on {where} for {names}; elsewhere auto will leave the draft model alone."
    if not gains:
        pays = f"This pair does not pay on {where}: auto will mostly leave the draft model alone."
    elif len(gains) == len(parts):
        pays = f"This pair pays on {where}: {overall.auto:.2f}x expected with -k auto."
    one = costs.verify(1)
    prices = (
        f"A draft token costs {costs.draft(1) / one:.0%} of a target token; checking 2 tokens costs "
        f"{costs.verify(2) / one:.2f} times one, checking 4 {costs.verify(4) / one:.2f} times; "
        f"{overall.acceptance:.0%} of single draft tokens would stand."
    )
    return [pays, prices, *_remedies(overall, answers, costs, greedy)]


def _remedies(overall: Prediction, answers: Sequence[Answer], costs: Costs, greedy: bool) -> list[str]:
    """What would make a difference, computed by changing one thing at a time."""
    flat = replace(costs, verify=Curve({1: costs.verify(1)}))
    gpu = "a machine on which checking several tokens costs no more than one (as large models on GPUs nearly do)"
    helpful = []
    for what, texts, prices in (
        ("a draft model of this quality at half the cost", answers, half_priced(costs)),
        ("a draft model that is wrong half as often", [_improved(answer) for answer in answers], costs),
        (gpu, answers, flat),
    ):
        speedup = simulation.adaptive(texts, prices, greedy).tokens_per_s(prices) / overall.alone_tokens_per_s
        if speedup > max(overall.auto, 1.0) * _REMEDY:
            helpful.append(f"{what}: {speedup:.2f}x")
    return ["What would change that: " + "; ".join(helpful) + "."] if helpful else []


def _improved(answer: Answer) -> Answer:
    """The answer with every other wrong token set right."""
    stands = list(answer.stands)
    wrong = [i for i, stood in enumerate(stands) if not stood]
    for i in wrong[::2]:
        stands[i] = True
    return replace(answer, stands=tuple(stands))
