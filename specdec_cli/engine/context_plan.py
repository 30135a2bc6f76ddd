"""How long contexts must be, and how much one pass must hold, for some settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from specdec_cli import drafters
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.types import MAX_SNAPSHOTS
from specdec_cli.decoding.wording import counted
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.llama.model import Model
from specdec_cli.settings.options import AUTO
from specdec_cli.settings.settings import Settings

_UNIT = 256
"""llama.cpp rounds a context up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """n_ctx: tokens. rows: rows of logits in one pass of the target. branches, drafted_branches: branches of the trees
    that the target and the draft model read.
    """

    n_ctx: int
    rows: int
    branches: int
    drafted_branches: int

    @classmethod
    def of(
        cls,
        settings: Settings,
        variants: Sequence[Settings],
        prompt_tokens: int,
        target: Model,
        before: ContextPlan | None,
    ) -> ContextPlan:
        """The plan for a prompt of `prompt_tokens` with any of the settings in `variants`. It keeps the rows and
        branches of the plan `before`. Raises SpecdecError if the prompt doesn't fit into the context.
        """
        rows = 1 + max(
            max(longest_draft(variant, target.rewinds), LONGEST if variant.bitwise else 0) for variant in variants
        )
        branches = max(each.branches for each in variants)
        answer = max(each.max_tokens for each in variants)
        needed = prompt_tokens + answer + (rows if branches > 1 else 0) + any(each.bitwise for each in variants)
        trained = target.n_ctx_train or needed  # 0: the file doesn't say
        n_ctx = settings.ctx or min(-(-needed // _UNIT) * _UNIT, trained)
        if prompt_tokens > n_ctx - 1:
            longer = bool(settings.ctx) and n_ctx < trained
            raise SpecdecError(
                f"the prompt has {counted(prompt_tokens, 'token')} and fills the context of {n_ctx:,}"
                + (f"; the model was trained on {trained:,}" if longer else ""),
                "Shorten the prompt, or set a larger -c." if longer else "Shorten the prompt.",
            )
        drafted = max(each.drafted_branches for each in variants)
        if before is not None:
            rows, branches = max(rows, before.rows), max(branches, before.branches)
            drafted = max(drafted, before.drafted_branches)
        return cls(n_ctx, rows, branches, drafted)

    def with_room(self, before: ContextPlan | None, trained: int) -> ContextPlan:
        """The plan with a context at least twice as long as before, if it must grow, so that it seldom grows."""
        if before is None or self.n_ctx <= before.n_ctx:
            return self
        twice = 2 * before.n_ctx
        return replace(self, n_ctx=max(self.n_ctx, min(twice, trained or twice)))

    def covers(self, other: ContextPlan) -> bool:
        """Whether contexts made for this plan fit another plan, too."""
        return all(have >= need for have, need in zip(astuple(self), astuple(other), strict=True))


def require_rewinding(settings: Settings, path: Path, branches: int, bitwise: bool) -> None:
    """Raise UsageError if the settings need what a recurrent model can't do.

    branches, bitwise: what they need from this model.
    """
    if bitwise:
        raise UsageError(
            f"--bitwise cannot be used with {path.name}: its memory is recurrent, so it reads accepted tokens again in "
            "other passes",
            "Leave --bitwise out; --drafter none runs the target alone.",
        )
    if branches > 1:
        what = f"--tree {settings.tree}" if branches == settings.drafted_branches else "lookahead"
        raise UsageError(
            f"{what} cannot be used with {path.name}: its memory is recurrent and cannot branch",
            "Draft chains: use the drafter model or ngram, without --tree.",
        )


def require_chains(settings: Settings) -> None:
    """Raise UsageError on settings that slots don't support."""
    also = "also in config.yaml and the profile."
    if settings.branches > 1:
        raise UsageError("several answers at a time can only draft chains", f"Leave out --tree and lookahead, {also}")
    if settings.bitwise:
        raise UsageError(
            "answers that share passes round differently from a single one", f"Leave out --bitwise, {also}"
        )


def longest_draft(settings: Settings, rewinds: bool) -> int:
    """The longest draft. rewinds: whether the target does; else its snapshots are the limit."""
    if settings.drafter == "none":
        return 0
    if settings.length_policy is not None:
        most = settings.draft_tokens if settings.draft_tokens != AUTO else LONGEST if rewinds else MAX_SNAPSHOTS
        return max(most, settings.lookahead_shape.tokens if settings.cascade.looks_ahead else 0)
    if settings.draft_tokens != AUTO:
        return settings.draft_tokens
    longest = max(drafters.form(name).longest for name in settings.cascade.names) if rewinds else MAX_SNAPSHOTS
    return max(longest, settings.lookahead_shape.tokens if settings.cascade.looks_ahead else 0)
