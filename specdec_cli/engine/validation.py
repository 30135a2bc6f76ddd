"""Every combination of settings that makes no sense is refused here, before a file is touched."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.rules import REPRODUCIBLE
from specdec_cli.engine.config import AUTO, Settings
from specdec_cli.llama.context import MOST_SEQUENCES, N_BATCH


def validate(settings: Settings) -> None:
    """Raise UsageError on settings that cannot be run, whatever the models."""
    _ = settings.sampling
    _check_length(settings)
    _check_lookahead(settings)
    _check_bitwise(settings)


def _check_length(settings: Settings) -> None:
    tokens = settings.draft_tokens
    if tokens != AUTO and not 1 <= tokens < N_BATCH:
        fewest = "Give -k 1 or more, or auto; to run the target alone, use --drafter none."
        most = f"Give -k up to {N_BATCH - 1}: one pass of llama.cpp takes {N_BATCH} tokens."
        raise UsageError(f"the number of draft tokens cannot be {tokens}", fewest if tokens < 1 else most)
    if not 0 <= settings.draft_min_p < 1:
        raise UsageError(f"draft-min-p cannot be {settings.draft_min_p}", "Give a number in [0, 1); 0 is off.")


def _check_lookahead(settings: Settings) -> None:
    shape = settings.lookahead_shape
    if shape.tokens + 1 > N_BATCH or shape.branches > MOST_SEQUENCES:
        raise UsageError(
            f"lookahead {settings.lookahead} is too much for one pass of llama.cpp",
            f"Make (W + G) * (N - 1) at most {N_BATCH}, and W + G at most {MOST_SEQUENCES}.",
        )
    tokens = settings.draft_tokens
    if tokens != AUTO and tokens < shape.window_tokens and settings.chain.looks_ahead:
        raise UsageError(
            f"the window {settings.lookahead} does not fit into {tokens} draft tokens",
            f"Give -k {shape.window_tokens} or more, or auto.",
        )


def _check_bitwise(settings: Settings) -> None:
    """`--bitwise` promises the target's own text: refuse what it cannot promise that for."""
    if not settings.bitwise or settings.drafter == "none":
        return
    if settings.temp > 0 and settings.accept not in REPRODUCIBLE:
        raise UsageError(
            f"--bitwise promises the target's own text, and at a temperature --accept {settings.accept} gives another",
            "Leave --accept out, or give --accept coupled or match.",
        )
    if settings.tree > 1 or settings.chain.looks_ahead:
        what = "lookahead" if settings.chain.looks_ahead else f"--tree {settings.tree}"
        raise UsageError(
            f"--bitwise cannot be used with {what}: a tree is read in another order than text, and rounds differently",
            "Chains work: the drafters model and ngram without --tree.",
        )


def require_used(typed: Collection[str], ways: Iterable[Settings]) -> None:
    """Raise UsageError if an option was typed that none of the drafters asked for uses.

    `none` takes all of them: it turns a command into its own baseline.
    """
    chains = [way.chain for way in ways]
    if all(chain.names == ("none",) for chain in chains):
        return
    for name, need, user, add in (
        ("ngram_corpus", "reads_corpus", "the drafter ngram", "ngram, or ngram+model"),
        ("lookahead", "looks_ahead", "the drafter lookahead", "lookahead"),
        ("draft_small", "needs_small", "drafters with a second draft model", "'small>model'"),
        ("tree", "needs_model", "drafters with a draft model", "model, or ngram+model"),
    ):
        if name in typed and not any(getattr(chain, need) for chain in chains):
            raise UsageError(f"--{name.replace('_', '-')} is for {user}", f"Add --drafter {add}.")


def require_rewinding(way: Settings, path: Path, branches: int, drafted_branches: int) -> None:
    """Raise UsageError for a model with recurrent memory, one state that cannot be on several branches.

    way: the settings asked for. branches: of the trees that they ask of this model; drafted_branches: of the draft
    model's trees alone.
    """
    if way.bitwise:
        raise UsageError(
            f"--bitwise cannot be used with {path.name}: its memory is recurrent, and reads what was accepted again in "
            "other passes",
            "Leave it out; --drafter none is the target alone.",
        )
    if branches > 1:
        what = f"--tree {way.tree}" if branches == drafted_branches else "lookahead"
        raise UsageError(
            f"{what} cannot be used with {path.name}: its memory is recurrent, and cannot branch",
            "Chains work: the drafters model and ngram without --tree.",
        )
