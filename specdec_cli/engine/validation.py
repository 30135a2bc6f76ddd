"""What settings come to in the terms of decoding; senseless ones are refused before a file is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from specdec_cli import draft_length, drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.length_policy import LengthPolicy
from specdec_cli.decoding.rules import REPRODUCIBLE
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.engine.settings import Settings
from specdec_cli.llama.context import MOST_SEQUENCES, N_BATCH


def validate(settings: Settings) -> None:
    """Raise UsageError on what the settings' own parts refuse, before a file is touched."""
    sampling_of(settings)
    fixed_length(settings)
    window, size, _ = lookahead_of(settings)
    _require_bitwise(settings)
    if isinstance(settings.draft_tokens, int) and settings.draft_tokens >= N_BATCH:
        raise UsageError(
            f"the number of draft tokens cannot be {settings.draft_tokens}",
            f"Give -k up to {N_BATCH - 1}: one pass of llama.cpp takes {N_BATCH} tokens.",
        )
    if (
        isinstance(settings.draft_tokens, int)
        and settings.draft_tokens < window * (size - 1) - 1
        and "lookahead" in drafters.split(settings.drafter)
    ):
        raise UsageError(
            f"the window {settings.lookahead} does not fit into {settings.draft_tokens} draft tokens",
            f"Give -k {window * (size - 1) - 1} or more, or auto.",
        )


def _require_bitwise(settings: Settings) -> None:
    """Refuse what `--bitwise` cannot promise the target's own text for."""
    if not settings.bitwise or settings.drafter == "none":
        return
    if settings.temp > 0 and settings.accept not in REPRODUCIBLE:
        raise UsageError(
            f"--bitwise promises the target's own text, and at a temperature --accept {settings.accept} gives another",
            "Leave --accept out, or give --accept coupled or match.",
        )
    if settings.tree > 1 or "lookahead" in drafters.split(settings.drafter):
        what = "lookahead" if "lookahead" in settings.drafter else f"--tree {settings.tree}"
        raise UsageError(
            f"--bitwise cannot be used with {what}: a tree is read in another order than text, and rounds differently",
            "Chains work: the drafters model and ngram without --tree.",
        )


def lookahead_of(settings: Settings) -> tuple[int, int, int]:
    """Lookahead's window, size of n-grams and number of candidates; raises UsageError if one pass cannot hold them."""
    try:
        window, size, candidates = (int(part) for part in settings.lookahead.split(":"))
    except ValueError:
        window = size = candidates = 0
    if window < 1 or size < 2 or candidates < 1:
        raise UsageError(
            f"lookahead cannot be {settings.lookahead!r}", "Give W:N:G as in 4:3:4, with W and G from 1 and N from 2."
        )
    if (window + candidates) * (size - 1) > N_BATCH or window + candidates > MOST_SEQUENCES:
        raise UsageError(
            f"lookahead {settings.lookahead} is too much for one pass of llama.cpp",
            f"Make (W + G) * (N - 1) at most {N_BATCH}, and W + G at most {MOST_SEQUENCES}.",
        )
    return window, size, candidates


def draft_size(settings: Settings, longest: int) -> int:
    """How many tokens a draft may have; `longest` where that adapts."""
    if settings.drafter == "none":
        return 0
    if isinstance(settings.draft_tokens, int):
        return settings.draft_tokens
    return max(longest, lookahead_size(settings))


def lookahead_size(settings: Settings) -> int:
    """How many tokens lookahead adds to a pass; 0 without it."""
    if "lookahead" not in drafters.split(settings.drafter):
        return 0
    window, size, candidates = lookahead_of(settings)
    return (window + candidates) * (size - 1) - 1


def branches(settings: Settings) -> int:
    """How many branches a draft may have."""
    if "lookahead" in drafters.split(settings.drafter):
        window, _, candidates = lookahead_of(settings)
        return max(drafted_branches(settings), window + candidates)
    return drafted_branches(settings)


def drafted_branches(settings: Settings) -> int:
    """How many branches the draft model may be asked for."""
    return settings.tree if drafters.needs_model(settings.drafter) else 1


def require_rewinding(
    settings: Settings, path: Path, rewinds: bool, ways: Sequence[Settings], branches: Callable[[Settings], int]
) -> None:
    """Raise UsageError if a model's memory is recurrent, one state that cannot be on several branches, and that is
    asked for. rewinds: whether it is not. branches: how many a way of decoding asks of the model.
    """
    if rewinds:
        return
    if settings.bitwise:
        raise UsageError(
            f"--bitwise cannot be used with {path.name}: its memory is recurrent, and reads what was accepted again in "
            "other passes",
            "Leave it out; --drafter none is the target alone.",
        )
    branching = [way for way in ways if branches(way) > 1]
    if branching:
        lookahead = lookahead_size(branching[0]) and branches(branching[0]) > drafted_branches(branching[0])
        what = "lookahead" if lookahead else f"--tree {branching[0].tree}"
        raise UsageError(
            f"{what} cannot be used with {path.name}: its memory is recurrent, and cannot branch",
            "Chains work: the drafters model and ngram without --tree.",
        )


def fixed_length(settings: Settings) -> LengthPolicy:
    """The fixed draft length that the settings ask for, or any where they leave it open."""
    tokens = settings.draft_tokens if isinstance(settings.draft_tokens, int) else 1
    whole = "lookahead" in drafters.split(settings.drafter)
    return draft_length.fixed_length(tokens, settings.draft_min_p, settings.temp == 0, whole)


def sampling_of(settings: Settings) -> SamplingSettings:
    """The part of the settings that makes distributions; raises UsageError on senseless values."""
    return SamplingSettings(
        temperature=settings.temp,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        frequency_penalty=settings.frequency_penalty,
        presence_penalty=settings.presence_penalty,
        penalty_window=settings.repeat_last_n,
    )
