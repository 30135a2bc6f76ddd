"""Acceptance rules by name."""

from __future__ import annotations

from specdec_cli.decoding.accept import coupled, match, rejection
from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.noise import SharedNoise
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import AcceptRule
from specdec_cli.decoding.typical import typical

RULES: dict[str, AcceptRule] = {"coupled": coupled, "match": match, "rejection": rejection, "typical": typical}

LOSSY = frozenset({"typical"})
"""These change the output's distribution, and are shown as lossy everywhere."""

REPRODUCIBLE = frozenset({"coupled", "match"})
"""With a seed, these give exactly the text that the target alone samples with it."""


_BUILT_IN = frozenset(RULES)


def register(rule: AcceptRule) -> str:
    """The name of a rule that the program passes: its own, with a number if that is taken."""
    if taken := next((known for known, other in RULES.items() if other is rule), ""):
        return taken
    name = getattr(rule, "__name__", type(rule).__name__)
    number = sum(known.partition(" ")[0] == name for known in RULES)
    name = f"{name} {number + 1}" if number else name
    RULES[name] = rule
    return name


def keeps_greedy(name: str) -> bool:
    """Whether the text at temperature 0 is the target's own. Rules that the program passes don't promise that."""
    return name in _BUILT_IN


def sampler_of(
    rule: str, sampling: SamplingOptions, seed: int, constraint: Constraint | None = None
) -> StandardSampler:
    """The sampler for a rule's draws; only `coupled` uses `seed`."""
    noise = SharedNoise(seed) if rule == "coupled" and sampling.temperature > 0 else None
    return StandardSampler(sampling, noise, constraint)


def label(name: str) -> str:
    """A rule's name as displayed."""
    return f"{name} (lossy)" if name in LOSSY else name
