"""`pull` in steps: read both headers, compare, plan, download, compare again, record. Only `run` fetches weights."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

from specdec_cli.decoding.errors import DownloadError, IncompatiblePair, SpecdecError, UsageError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.head_files import head_alone, require_fit, require_model
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary, require_tokenizer
from specdec_cli.pairs import draft_proposals, profiles, pulled_pairs, references
from specdec_cli.pairs.config_layers import settings_of
from specdec_cli.pairs.draft_proposals import DraftProposal
from specdec_cli.pairs.hub import cache
from specdec_cli.pairs.hub.download import DownloadProgress, download, has_right_checksum
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.hub.requests import hub_errors
from specdec_cli.pairs.model_sources import ModelSource, read_source
from specdec_cli.pairs.pair_check import CONTEXT, FreeMemory, PairCheck, compare_sources
from specdec_cli.pairs.pulled_pairs import PulledPair
from specdec_cli.user_files import expanded, format_bytes, is_file


@dataclass(frozen=True, slots=True)
class PlannedFile(RemoteFile):
    """A file on the Hub and its state in the cache. here: whether it is complete. begun: bytes downloaded so far."""

    here: bool
    begun: int
    path: str


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a pair. remote: on the Hub, with `PlannedFile`s; otherwise path: on this machine."""

    name: str
    path: str | None
    remote: RemoteModel | None

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        return tuple(file for file in self.remote.files if isinstance(file, PlannedFile)) if self.remote else ()


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What a download would fetch. Sizes are in bytes. recorded: whether the pair would be recorded under its name."""

    name: str
    recorded: bool
    target: PlannedModel
    draft: PlannedModel | None
    to_download: int
    free: int
    cache: str
    check: PairCheck | None
    notes: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file on the Hub, by repository and name, the target's first."""
        remotes = [model.remote for model in (self.target, self.draft) if model and model.remote]
        return {f"{remote.repo}/{file.name}": file.size for remote in remotes for file in remote.files}

    @property
    def translates(self) -> bool:
        """Whether drafts of this pair must be translated, because its tokenizers differ."""
        return self.check is not None and self.check.verdict == "translatable"

    def require_same_tokenizers(self, otherwise: str) -> None:
        """Raise IncompatiblePair if drafts must be translated. otherwise: how to accept that."""
        if self.check and self.translates:
            problem = f"the tokenizers of draft and target differ: {self.check.reason}"
            fix = f"Choose a draft of the same model family, or {otherwise}, which is usually slower."
            raise IncompatiblePair(problem, fix)


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A pair on this machine. name: None if it isn't recorded. paths: by role. run: the command that runs it."""

    name: str | None
    already: bool
    downloaded: int
    paths: dict[str, str]
    target: RemoteModel | None
    draft: RemoteModel | None
    check: PairCheck | None
    notes: tuple[str, ...]
    run: str


class PairDownload:
    """The download of one pair: a profile's, or a target and a draft.

    target, draft: the models' names. For a target without a draft, call `proposals` and `choose`. save_as: the pair's
    name, by default from the files' names. verify: whether to compute the checksums of files that are already here.
    Raises UsageError unless the arguments name exactly one pair.
    """

    def __init__(
        self,
        name: str | None = None,
        target: str | None = None,
        draft: str | None = None,
        save_as: str | None = None,
        verify: bool = False,
    ) -> None:
        if name and references.parse(name) and not target:  # a target without --target
            name, target = None, name
        if name and (target or draft):
            raise UsageError("both a profile and models were named", "Give a profile, or a target with a draft.")
        if name and save_as:
            raise UsageError("a profile already has a name", "Leave out the name (--as), or give a target instead.")
        if name:
            profile = profiles.load(name)
            settings_of(profile)  # raises on invalid settings
            self.name, self.target, self.draft = name, str(profile.model("target")), profile.model("draft")
        elif target:
            self.name, self.target = save_as or "", _checked(target, "target")
            self.draft = _checked(draft, "draft") if draft else None
            if self.name:
                self._check_name()
        else:
            raise UsageError("no profile or model was named", "Name a profile (see specdec ls) or a target.")
        self.needs_draft = not name and not self.draft
        self.notes: list[str] = []
        self._verify = verify
        self._verified: dict[str, bool] = {}
        """By digest: whether the content on the disk has this checksum."""
        self._sources: list[ModelSource] = []
        self._pair_check: PairCheck | None = None

    def _check_name(self) -> None:
        models = tuple(model for model in (self.target, self.draft) if model)
        if not all(map(references.parse, models)):
            raise UsageError("only models that are all on the Hub get a name", "Leave it out (--as).")
        if not pulled_pairs.is_free(pulled_pairs.check_name(self.name), models):
            raise UsageError(f"{self.name!r} is the name of another pair", "Choose another name (--as).")

    def existing(self) -> DownloadResult | None:
        """The pair, if it has been pulled and its files are complete."""
        for name in pulled_pairs.names():
            pair = pulled_pairs.readable(name)  # a damaged record is written again
            same = pair and self.name in ("", name) and pair.references == (self.target, self.draft) and pair.compared
            if pair and same and pair.is_whole() and all(self._is_here(*file) for file in pair.files()):
                return self._result(pair, [path for path in pair.paths() if path], 0)
        return None

    def _is_here(self, model: RemoteModel, file: RemoteFile) -> bool:
        """Whether a file is complete. Verifies each checksum at most once."""
        if not cache.is_here(model, file):
            return False
        if self._verify and file.digest not in self._verified:
            self._verified[file.digest] = has_right_checksum(model, file)
        return self._verified.get(file.digest, True)

    def read_target(self) -> ModelSource:
        """Resolve the target and read its header, once."""
        if not self._sources:
            self._sources.append(self._read(self.target))
            require_tokenizer(self._sources[0].header)
            require_model(self._sources[0].header)
        return self._sources[0]

    def _read(self, name: str) -> ModelSource:
        source = read_source(name, self.notes, here_first=False)
        require_runnable(source.header)
        require_sound_vocabulary(source.header)
        return source

    def proposals(self) -> list[DraftProposal]:
        """Known drafts for the target, the likeliest to pay first."""
        return draft_proposals.proposals(self.read_target(), self.notes)

    def choose(self, draft: str | None) -> None:
        """Set the draft; None for the target alone."""
        self.draft, self.needs_draft = draft, False

    def plan(self) -> DownloadPlan:
        """Compare the pair and plan its download.

        Raises IncompatiblePair if the tokenizers don't fit, before any weights are fetched.
        """
        target = self.read_target()
        if self.draft and len(self._sources) == 1:
            draft = self._read(self.draft)
            comparison = tokenizer_comparison.compare(target.header, draft.header)
            comparison.require()
            if head_alone(draft.header):
                require_fit(draft.header, target.header, comparison)
            self._pair_check = compare_sources(target, draft, comparison, CONTEXT, FreeMemory.now())
            self._sources.append(draft)
        with hub_errors(self.target):
            models = [*map(self._planned, self._sources)]
            recorded = len(self._remotes) == len(self._sources)
            name = self.name or (pulled_pairs.name_of(*self._remotes) if recorded else "")
            if recorded and (unused := pulled_pairs.unused_after(name, self._remotes)):
                files = f"{', '.join(unused)} ({format_bytes(sum(unused.values()))})"
                self.notes.append(f"no pair will use {files} any more; to remove that first: specdec rm {name}")
            needed = sum(file.size - file.begun for model in models for file in model.files if not file.here)
            return DownloadPlan(
                name=name,
                recorded=recorded,
                target=models[0],
                draft=models[1] if len(models) > 1 else None,
                to_download=needed,
                free=cache.free_space(),
                cache=str(cache.cache_dir()),
                check=self._pair_check,
                notes=tuple(self.notes),
            )

    def _planned(self, source: ModelSource) -> PlannedModel:
        """A model with the state of its files in the cache."""
        remote = source.remote
        if remote:
            planned = [
                PlannedFile(
                    name=file.name,
                    size=file.size,
                    digest=file.digest,
                    here=self._is_here(remote, file),
                    begun=cache.begun(remote, file),
                    path=str(cache.path_of(remote, file)),
                )
                for file in remote.files
            ]
            remote = replace(remote, files=tuple(planned))
        return PlannedModel(source.name, str(source.path) if source.path else None, remote)

    @property
    def _remotes(self) -> list[RemoteModel]:
        return [source.remote for source in self._sources if source.remote]

    def run(self, plan: DownloadPlan, progress: DownloadProgress = lambda *_: None) -> DownloadResult:
        """Download missing files, compare the tokenizers on the disk, and record the pair if it is all on the Hub.

        Raises DownloadError if there is no room or the Hub fails, IncompatiblePair if the files don't fit. Whatever was
        downloaded is kept and recorded, so that the same command continues it and `rm` removes it.
        """
        if plan.to_download > plan.free:
            needed, free = format_bytes(plan.to_download), format_bytes(plan.free)
            problem = f"the download needs {needed}, but {plan.cache} has {free} free"
            raise DownloadError(problem, "Free some space, or set HF_HOME to a larger disk.")
        if plan.recorded:
            pulled_pairs.require_writable()
        known, old = plan.name in pulled_pairs.names(), pulled_pairs.readable(plan.name)
        pair = _record(old, plan.name, *self._remotes) if plan.recorded else None
        files = [(model, file) for model in self._remotes for file in model.files]
        try:
            for model, file in files:
                if not self._verified.pop(file.digest, True):
                    cache.discard(model, file)
                download(model, file, progress)
        except BaseException:
            if pair and not any(cache.is_here(*each) or cache.begun(*each) for each in files):
                with suppress(OSError, SpecdecError):
                    if old:
                        pulled_pairs.save(old)
                    elif not known:
                        pulled_pairs.forget(pair)
            raise
        paths = [
            cache.path_of(source.remote, source.remote.files[0]) if source.remote else source.path or Path(source.name)
            for source in self._sources
        ]
        if self._pair_check:
            _require_same(paths, self._pair_check)
        if pair:
            pulled_pairs.save(replace(pair, compared=True))
        return self._result(pair, paths, plan.to_download)

    def _result(self, pair: PulledPair | None, paths: list[Path], downloaded: int) -> DownloadResult:
        by_role = dict(zip(("target", "draft"), map(str, paths), strict=False))
        name = pair.name if pair else self.name
        flags = ["-p", name] if name else [f"--{role}={path}" for role, path in by_role.items()]
        kept, target, draft = (pair.name, pair.target, pair.draft) if pair else (None, None, None)
        notes, run = tuple(self.notes), shlex.join(["specdec", "run", *flags])
        return DownloadResult(kept, not downloaded, downloaded, by_role, target, draft, self._pair_check, notes, run)


def _checked(model: str, role: Literal["target", "draft"]) -> str:
    model = profiles.model_name(model, role)
    if reference := references.parse(model):
        return str(reference)
    if not (model.endswith(".gguf") and is_file(expanded(model))):
        raise UsageError(
            f"{model!r} is neither a model on the Hub nor a file", "Write REPO:QUANT, REPO/FILE.gguf, or a file's path."
        )
    return model


def _require_same(paths: Sequence[Path], planned: PairCheck) -> None:
    """Raise IncompatiblePair if the files on the disk don't fit, or only now turn out to need translation. planned: the
    comparison of their headers on the Hub.
    """
    comparison = tokenizer_comparison.compare(*map(read_header, paths))
    comparison.require()
    if comparison.verdict == "translatable" != planned.verdict:
        problem = f"the tokenizers in the files differ from those in the headers on the Hub: {comparison.reason}"
        raise IncompatiblePair(problem, "Compare the files with specdec check.")


def _record(old: PulledPair | None, name: str, target: RemoteModel, draft: RemoteModel | None = None) -> PulledPair:
    """Record a pair in place of an old one, and create a profile of its name unless there is one."""
    today = date.today().isoformat()
    makes_profile = name not in profiles.names()
    pair = PulledPair(name, target, draft, today, makes_profile or bool(old and old.made_profile))
    pulled_pairs.save(pair)
    if makes_profile:
        profiles.save(name, target.reference, draft.reference if draft else None, today)
    return pair
