"""Acceptance rules by name."""

from __future__ import annotations

from collections.abc import Container
from itertools import count
from threading import Lock

from specdec_cli.decoding.accept import coupled, match, rejection
from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import UsageError
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
_lock = Lock()


def register(rule: AcceptRule) -> str:
    """The name of a rule that the program passes: its own, with a number if that is taken. Raises UsageError if it
    isn't a function.
    """
    if not callable(rule):
        raise UsageError(f"{rule!r:.60} is not an acceptance rule", f"Acceptance rules: {', '.join(RULES)}.")
    first = getattr(rule, "__name__", type(rule).__name__)
    with _lock:
        if taken := next((known for known, other in RULES.items() if other == rule), ""):
            return taken
        name = free_name(first, RULES)
        RULES[name] = rule
        return name


def free_name(first: str, taken: Container[str]) -> str:
    """A name that isn't taken: this one, or with a number."""
    return first if first not in taken else next(name for i in count(2) if (name := f"{first}-{i}") not in taken)


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
