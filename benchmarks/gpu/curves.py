"""What passes cost: t(n) of target and draft model, by context and flash attention; and as a file for profiles/."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from specdec_cli.decoding.types import REVIEWED
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.timing import pass_laps
from specdec_cli.measure import suites

LONGEST = 64
READING = (128, 512)
"""Longer passes, in which a draft model reads what it has missed."""
VERIFY_POINTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
DRAFT_POINTS = (1, 2, 4, 8, 16, 32, 64, 128, 512)

Laps = dict[int, list[float]]


@contextmanager
def flash_attention(on: bool) -> Iterator[None]:
    """Contexts made from now on have it, or have it not; by themselves they have it where llama.cpp can."""
    original = lib.llama_context_default_params

    def params() -> Any:
        found = original()
        found.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if on else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return found

    lib.llama_context_default_params = params
    try:
        yield
    finally:
        lib.llama_context_default_params = original


def measure(
    models: Mapping[str, str],
    contexts: Sequence[int],
    threads: int,
    seconds: float,
    longest: int = LONGEST,
) -> Iterator[dict[str, Any]]:
    """Time passes of every size at every context, with and without flash attention; yields one curve at a time.

    The time is shared out evenly; each size is timed once whatever it takes.
    """
    each = seconds / (len(models) * len(contexts) * 2)
    sizes = [*range(1, longest + 1), *READING]
    for role, path in models.items():
        with closing(Model(Path(path), Placement(), Interrupt())) as model:
            text = [token for prompt in suites.load("python") for token in model.tokenize(prompt.text, False)]
            rows = longest if role == "target" else min(REVIEWED, longest)
            for fill in contexts:
                for on in (True, False):
                    with (
                        flash_attention(on),
                        closing(LlamaContext(model, fill + max(sizes), rows, threads, Interrupt())) as context,
                    ):
                        laps = pass_laps(context, text, sizes, len(sizes), each, fill=fill)
                    yield {"model": role, "context": fill, "flash_attention": on, **summary(laps)}


def summary(laps: Laps) -> dict[str, dict[str, float]]:
    """Of each size the shortest lap and the median, in milliseconds, and how often it was timed."""
    return {
        "least_ms": {str(n): min(found) * 1000 for n, found in laps.items()},
        "median_ms": {str(n): statistics.median(found) * 1000 for n, found in laps.items()},
        "laps": {str(n): len(found) for n, found in laps.items()},
    }


def points(curve: Mapping[str, Any], wanted: Sequence[int]) -> dict[int, float]:
    """Milliseconds at some sizes. No pass takes longer than a larger one, for it could be filled up to that."""
    least, found = float("inf"), {}
    for n, ms in sorted(((int(n), ms) for n, ms in curve["least_ms"].items()), reverse=True):
        least = found[n] = min(least, ms)
    return {n: found[n] for n in wanted if n in found}


def chosen(curves: Sequence[Mapping[str, Any]], role: str) -> Mapping[str, Any]:
    """The curve of a model that specdec would have: at the shortest context, with flash attention."""
    return min((c for c in curves if c["model"] == role and c["flash_attention"]), key=lambda c: int(c["context"]))


def hardware_yaml(
    curves: Sequence[Mapping[str, Any]], description: str, machine: str, other_ms: float | None = None
) -> str:
    """A file for profiles/hardware. other_ms: what a step takes besides passes, if that was measured."""
    target, draft = chosen(curves, "target"), chosen(curves, "draft")
    laps = target["laps"].values()
    source = f"benchmarks/gpu/measure.py curves: {machine}; {target['context']} tokens in the cache, flash attention, "
    source += f"the shortest of {min(laps)} to {max(laps)} laps."
    indented = textwrap.fill(source, 112, initial_indent="  ", subsequent_indent="  ")
    lines = [f'description: "{description}"', "basis: measured", "source: >", indented]
    for key, curve, wanted in (("verify_ms", target, VERIFY_POINTS), ("draft_ms", draft, DRAFT_POINTS)):
        lines.append(f"{key}: {{{', '.join(f'{n}: {ms:.3g}' for n, ms in points(curve, wanted).items())}}}")
    if other_ms is not None:
        lines.append(f"other_ms: {other_ms:.2g}")
    return "\n".join(lines) + "\n"
