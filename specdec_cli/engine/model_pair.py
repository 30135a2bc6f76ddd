"""Which model files a run takes, read by their headers and found to fit."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine.config import Settings
from specdec_cli.hub.cache import locate
from specdec_cli.models import tokenizer_comparison
from specdec_cli.models.gguf import read_header
from specdec_cli.models.gguf_header import Header, require_runnable


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two model files whose headers have been read and found to fit; `draft` is None without a draft model, `small`
    without a second one. n_shared: ids that all of them share.
    """

    target: Header
    target_path: Path
    draft: Header | None
    draft_path: Path | None
    n_shared: int
    notes: tuple[str, ...]
    small: Header | None = None
    small_path: Path | None = None


def check_pair(settings: Settings) -> ModelPair:
    """Read both headers and compare the tokenizers; loads nothing.

    Raises SpecdecError on an unusable file, IncompatiblePair on different tokenizers.
    """
    target_path = Path(settings.target)
    target = read_header(target_path)
    require_runnable(target)
    if not settings.chain.needs_model:
        return ModelPair(target, target_path, None, None, 0, ())
    if settings.draft is None and settings.chain.drafts_itself:
        prune = shlex.join(["specdec", "draft", "prune", str(target_path)])
        raise SpecdecError(
            f"no draft has been made of {target_path.name}, or one of the two has changed since",
            f"Make one: {prune} --search N -o OUT.gguf; or name one with -md.",
        )
    if settings.draft is None:
        raise SpecdecError(
            f"no draft model is given for {target_path.name}",
            "Name one with -md; --drafter ngram needs none, --drafter none runs the target alone.",
        )
    draft_path = Path(settings.draft)
    draft, n_shared, notes = _fitting(target, draft_path)
    if not settings.chain.needs_small:
        return ModelPair(target, target_path, draft, draft_path, n_shared, notes)
    if settings.draft_small is None:
        problem = f"no second draft model is given for {settings.drafter}"
        raise SpecdecError(problem, "Name one with -mds; model<ngram needs none.")
    small_path = locate(settings.draft_small, shlex.join(["specdec", "pull", "--target", settings.draft_small]))
    small, shared_by_small, more = _fitting(target, small_path)
    shared = min(n_shared, shared_by_small)
    return ModelPair(target, target_path, draft, draft_path, shared, (*notes, *more), small, small_path)


def _fitting(target: Header, path: Path) -> tuple[Header, int, tuple[str, ...]]:
    """A draft model's header, the ids it shares with the target, and notes. Raises as `check_pair` does."""
    draft = read_header(path)
    require_runnable(draft)
    comparison = tokenizer_comparison.compare(target, draft)
    comparison.require()
    notes = [comparison.reason] if comparison.verdict == "compatible" else []
    if draft.n_params > target.n_params:
        notes.append(
            f"the draft is larger than the target ({draft.n_params / 1e6:,.1f} against {target.n_params / 1e6:,.1f} "
            "million parameters): it will slow the target down"
        )
    return draft, comparison.n_shared, tuple(notes)
