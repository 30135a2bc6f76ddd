"""Checks the model files of a command by their headers, before anything is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli import drafters
from specdec_cli.decoding.errors import IncompatiblePair, UsageError
from specdec_cli.gguf import adapters, chat_template, tokenizer_comparison
from specdec_cli.gguf.head_files import head_alone, head_of, read_medusa, require_fit, require_model
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary, require_tokenizer
from specdec_cli.gguf.tokenizer_comparison import Comparison
from specdec_cli.gguf.vocabulary import TokenOverlap, Vocabulary
from specdec_cli.llama.adapter import Adapter, identity
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.settings import Settings
from specdec_cli.user_files import expanded
from specdec_cli.weights.model_loading import begin_trial


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Model files that fit, by their headers. draft: None without a draft model. small: the second draft model, if any.
    n_shared: number of token ids that they all share. adapters: those of the target.
    """

    target: Header
    target_path: Path
    draft: Header | None
    draft_path: Path | None
    n_shared: int
    notes: tuple[str, ...]
    small: Header | None = None
    small_path: Path | None = None
    adapters: tuple[Adapter, ...] = ()
    draft_adapters: tuple[Adapter, ...] = ()
    overlap: TokenOverlap | None = None
    """Set for a draft model with a different tokenizer."""
    difference: str = ""
    """How the tokenizers differ."""

    @property
    def paths(self) -> tuple[Path, Path]:
        """The files of target and draft. Raises RuntimeError without a draft model."""
        if self.draft_path is None:
            raise RuntimeError("there is no draft model")
        return self.target_path, self.draft_path

    def require_translation(self, settings: Settings) -> None:
        """Raise IncompatiblePair if the settings need the target's tokenizer, and the draft model has another."""
        if self.overlap is None:
            return
        needy = (name for name in settings.cascade.names if drafters.spec(name).needs_model and name != "model")
        if what := next((f"the drafter {name}" for name in needy), "--tree" if settings.drafted_branches > 1 else ""):
            raise _untranslated(self.difference, what)


def check_pair(settings: Settings) -> ModelPair:
    """Read the headers and compare the tokenizers, without loading the models.

    Raises UsageError if a model is missing, SpecdecError on an unusable file, IncompatiblePair if the tokenizers don't
    fit.
    """
    target_path = Path(settings.target)
    target = _read_runnable(target_path)
    require_tokenizer(target)
    require_model(target)
    chat_template.warm_up(target)
    lora = _adapters(settings.lora, target_path, target)
    if not settings.cascade.needs_model:
        return ModelPair(target, target_path, None, None, 0, (), adapters=lora)
    if settings.cascade.head:
        return replace(_with_head(settings, target, target_path), adapters=lora)
    if settings.draft is None and settings.cascade.drafts_itself:
        prune = shlex.join(["specdec", "draft", "prune", "-m", str(target_path)])
        raise UsageError(
            f"no draft has been made from {target_path.name}, or one of the two files has changed since",
            f"Make one with {prune} --search N -o OUT.gguf, or name one with -md.",
        )
    if settings.draft is None:
        raise UsageError(
            f"there is no draft model for {target_path.name}",
            "Name one with -md; --drafter ngram needs none, --drafter none runs the target alone.",
        )
    draft_path = Path(settings.draft)
    draft, comparison, notes = _fitting(target, draft_path)
    lora_draft = _adapters(settings.lora_draft, draft_path, draft)
    shared = comparison.n_shared
    pair = ModelPair(target, target_path, draft, draft_path, shared, notes, adapters=lora, draft_adapters=lora_draft)
    pair = replace(pair, overlap=comparison.overlap, difference=comparison.reason)
    pair.require_translation(settings)
    if not settings.cascade.needs_small:
        return pair
    if settings.draft_small is None:
        problem = f"there is no second draft model for {settings.drafter}"
        raise UsageError(problem, "Name one with -mds; model<ngram needs none.")
    small_path = Path(settings.draft_small)
    small, small_comparison, more = _fitting(target, small_path)
    if small_comparison.overlap is not None:
        raise _untranslated(small_comparison.reason, "the second draft model")
    shared, notes = min(shared, small_comparison.n_shared), (*notes, *more)
    return replace(pair, n_shared=shared, notes=notes, small=small, small_path=small_path)


_HEADS = {
    "": "a model without heads",
    "mtp": "next-token layers",
    "eagle3": "an EAGLE-3 head",
    "medusa": "a set of Medusa heads",
}


def _with_head(settings: Settings, target: Header, target_path: Path) -> ModelPair:
    """A target and the heads that draft from its hidden rows. Raises the errors of `check_pair`."""
    kind = settings.cascade.head
    if settings.draft is None or settings.draft == settings.target:
        if head_of(target) != kind:
            what = f"{_HEADS[kind]} is a separate file" if kind != "mtp" else "it has no next-token layers"
            problem = f"{target_path.name} cannot draft for itself with {kind}: {what}"
            raise UsageError(problem, "Name a file with -md; --drafter ngram needs none.")
        return ModelPair(target, target_path, target, target_path, len(Vocabulary(target)), ())
    path = Path(settings.draft)
    draft, comparison, notes = _fitting(target, path, heads=True)
    if head_of(draft) != kind:
        found = _HEADS[head_of(draft)]
        raise UsageError(
            f"{path.name} cannot draft with {kind}: it is {found}", "Name another drafter, or another file."
        )
    require_fit(draft, target, comparison)
    if kind == "medusa":
        read_medusa(draft, path, len(Vocabulary(target)))
    return ModelPair(target, target_path, draft, path, comparison.n_shared, notes)


def _adapters(texts: tuple[str, ...], path: Path, model: Header) -> tuple[Adapter, ...]:
    """A model's adapters, except those of scale 0. Starts the trial of new ones. Raises the errors of `check_pair`."""
    acting = []
    for adapter in map(Adapter.parse, texts):
        place = expanded(str(adapter.path))
        header, about = adapters.read(place, model), place.stat()
        file = f"{about.st_dev}/{about.st_ino}/{about.st_size}/{about.st_mtime_ns}"
        acting += [replace(adapter, path=place, size=header.size, file=file)] if adapter.scale else []
    if acting:
        begin_trial(path, acting)
    return tuple(acting)


def _read_runnable(path: Path, heads: bool = False) -> Header:
    """The header of a file that llama.cpp can run, as far as the header shows. Starts the trial of a new file."""
    new = False if heads else begin_trial(path)  # heads are tried with their target
    header = read_header(path)
    require_runnable(header)
    if new:
        require_sound_vocabulary(header)
    return header


def _untranslated(difference: str, what: str) -> IncompatiblePair:
    problem = f"{what} needs a draft model with the target's tokenizer: {difference}"
    return IncompatiblePair(
        problem, "Use a draft of the same model family, or the drafter model without --tree, which translates."
    )


def _fitting(target: Header, path: Path, heads: bool = False) -> tuple[Header, Comparison, tuple[str, ...]]:
    """A draft model's header, the comparison of its tokenizer, and notes. Raises the errors of `check_pair`."""
    draft = _read_runnable(path, heads)
    if not heads and (kind := head_alone(draft)):
        raise UsageError(f"{path.name} holds only heads, not a model", f"Draft with them: --drafter ngram+{kind}.")
    comparison = tokenizer_comparison.compare(target, draft)
    comparison.require()
    notes = [comparison.reason] if comparison.verdict == "compatible" else []
    if comparison.overlap:
        notes.append(f"the draft has another tokenizer, so specdec translates its tokens ({comparison.overlap})")
    if draft.n_params > target.n_params:
        notes.append(
            f"the draft is larger than the target ({draft.n_params / 1e6:,.1f} against {target.n_params / 1e6:,.1f} "
            "million parameters), so drafting is unlikely to pay"
        )
    return draft, comparison, tuple(notes)


def setup_of(placements: Sequence[Placement], *acting: Sequence[Adapter]) -> str:
    """A key for these devices and adapters; empty for the default devices without adapters."""
    parts = [*(placement.key for placement in placements), *map(identity, acting)]
    return " | ".join(parts) if any(parts) else ""


def setup_of_pair(pair: ModelPair, settings: Settings) -> str:
    return setup_of(settings.placements, pair.adapters, pair.draft_adapters)
