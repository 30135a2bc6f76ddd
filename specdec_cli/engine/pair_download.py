"""`pull` in steps: read both headers, compare them, plan, download, compare again, record.

    download = PairDownload("qwen3-8b")
    plan = download.plan()
    result = download.run(plan)

Only `run` fetches weights. A caller may ask or show something between two steps.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Literal

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.engine.config_layers import require_known
from specdec_cli.engine.model_source import ModelSource, model_name, read_source
from specdec_cli.engine.pair_check import CONTEXT, FreeMemory, compare_sources
from specdec_cli.hub import cache
from specdec_cli.hub.download import DownloadProgress, download
from specdec_cli.hub.failures import hub_errors
from specdec_cli.hub.repository import RemoteModel
from specdec_cli.models import draft_candidates, profiles, references, tokenizer_comparison
from specdec_cli.models.gguf import read_header
from specdec_cli.models.gguf_header import require_runnable
from specdec_cli.results import (
    DownloadPlan,
    DownloadResult,
    DraftProposal,
    PairCheck,
    PlannedFile,
    PlannedModel,
    PlannedRemote,
    format_bytes,
)
from specdec_cli.store import pulled_pairs
from specdec_cli.store.pulled_pairs import PulledPair

_MAX_PROPOSALS = 5


class PairDownload:
    """One pair to download: a profile's, or of models named as in `check`.

    target, draft: the models' names. A target without a draft needs one: `proposals`, then `choose`. save_as: the
    pair's name, or one is made of the files' names. Raises UsageError if that names no pair or two.
    """

    def __init__(
        self, name: str | None = None, target: str | None = None, draft: str | None = None, save_as: str | None = None
    ) -> None:
        if name and references.parse(name) and not target:  # a target, without the flag
            name, target = None, name
        if name and (target or draft):
            raise UsageError("a profile was named and models too", "Give a profile, or --target with --draft.")
        if name and save_as:
            raise UsageError("a profile has its name already", "Leave out --as, or name the models.")
        if name:
            profile = profiles.load(name)
            require_known(profile)
            self.name, self.target, self.draft = name, str(profile.model("target")), profile.model("draft")
        elif target:
            self.name, self.target = save_as or "", _checked(target, "target")
            self.draft = _checked(draft, "draft") if draft else None
            self._check_name()
        else:
            raise UsageError("nothing was named to pull", "Give a profile (specdec ls lists them), or --target.")
        self.needs_draft = not name and not self.draft
        self.notes: list[str] = []
        self._sources: list[ModelSource] = []
        self._comparison: PairCheck | None = None

    def _check_name(self) -> None:
        models = tuple(model for model in (self.target, self.draft) if model)
        if self.name and not all(map(references.parse, models)):
            raise UsageError("only a pair that is all on the Hub is kept under a name", "Leave out --as.")
        if self.name and not pulled_pairs.is_free(pulled_pairs.check_name(self.name), models):
            raise UsageError(f"{self.name!r} is the name of another pair", "Choose another name with --as.")

    def existing(self) -> DownloadResult | None:
        """The pair, if it was pulled before and is still there, whole."""
        for name in pulled_pairs.names():
            pair = pulled_pairs.readable(name)  # one that is damaged is written anew
            same = pair and self.name in ("", name) and pair.references == (self.target, self.draft)
            if pair and same and pair.is_here():
                return self._result(pair, [path for path in pair.paths() if path], None)
        return None

    def read_target(self) -> ModelSource:
        """Resolve the target and read its header, once."""
        if not self._sources:
            self._sources.append(self._read(self.target))
        return self._sources[0]

    def _read(self, name: str) -> ModelSource:
        source = read_source(name, self.notes, here_first=False)
        require_runnable(source.header)
        return source

    def proposals(self) -> list[DraftProposal]:
        """Drafts whose headers have the target's tokenizer, the likeliest to pay first. Raises SpecdecError if none."""
        target = self.read_target().header
        proposals, failure = [], None
        for name in draft_candidates.candidates(target, self.target)[:_MAX_PROPOSALS]:
            try:
                draft = read_source(name, self.notes, here_first=True).header
            except SpecdecError as error:
                failure = failure or error
                self.notes.append(f"{name} was not looked at: {error}")
                continue
            verdict = tokenizer_comparison.compare(target, draft).verdict
            ratio = draft.n_active_params / max(1, target.n_active_params)
            if verdict != "incompatible" and ratio < 1:
                proposals.append(DraftProposal(name, draft.size, draft.n_params, ratio, verdict))
        if not proposals:
            pre = target.metadata.get("tokenizer.ggml.pre")
            raise failure or SpecdecError(
                f"no draft is known for {self.target} (tokenizer {pre!s:.40})", "Name one with --draft."
            )
        return sorted(proposals, key=lambda proposal: draft_candidates.rank(proposal.ratio))

    def choose(self, draft: str) -> None:
        """Take one of the proposed drafts."""
        self.draft, self.needs_draft = draft, False

    def plan(self) -> DownloadPlan:
        """Compare the pair, and say what a download would fetch, and where to.

        Raises IncompatiblePair if the tokenizers differ, before any weights are fetched.
        """
        target = self.read_target()
        if self.draft and len(self._sources) == 1:
            draft = self._read(self.draft)
            comparison = tokenizer_comparison.compare(target.header, draft.header)
            comparison.require()
            self._comparison = compare_sources(target, draft, comparison, CONTEXT, FreeMemory.now())
            self._sources.append(draft)
        with hub_errors(self.target):
            models = [_planned(source) for source in self._sources]
            plan = DownloadPlan(
                self.name or self._name(),
                all(source.remote for source in self._sources),
                models[0],
                models[1] if len(models) > 1 else None,
                0,
                cache.free_space(),
                str(cache.cache_dir()),
                self._comparison,
                tuple(self.notes),
            )
            return replace(plan, to_download=sum(file.size - file.begun for file in plan.files if not file.here))

    @property
    def _remotes(self) -> list[RemoteModel]:
        return [source.remote for source in self._sources if source.remote]

    def _name(self) -> str:
        """A name made of the files', if both models are on the Hub; other pairs are not recorded."""
        remotes = self._remotes
        if len(remotes) < len(self._sources):
            return ""
        try:
            return pulled_pairs.name_of(remotes[0], remotes[1] if len(remotes) > 1 else None)
        except UsageError as error:
            raise UsageError(str(error), "Give it a name with --as NAME.") from None

    def run(self, plan: DownloadPlan, progress: DownloadProgress = lambda *_: None) -> DownloadResult:
        """Fetch what is not here yet, compare what lies on the disk, and record a pair that is all on the Hub.

        Raises DownloadError if there is no room or the Hub does not deliver; what has come is kept.
        """
        if plan.to_download > plan.free:
            raise DownloadError(
                f"{format_bytes(plan.to_download)} are to be downloaded, {format_bytes(plan.free)} are free in "
                f"{plan.cache}",
                "Free some space, or set HF_HOME to a larger disk.",
            )
        if plan.recorded:
            pulled_pairs.require_writable()
        for model in self._remotes:
            for file in model.files:
                download(model, file, progress)
        paths = [_path(source) for source in self._sources]
        verdict = _verdict(paths)
        return self._result(_record(plan.name, self._remotes, verdict) if plan.recorded else None, paths, plan)

    def _result(self, pair: PulledPair | None, paths: list[Path], plan: DownloadPlan | None) -> DownloadResult:
        """plan: None if nothing had to be done."""
        by_role = dict(zip(("target", "draft"), map(str, paths), strict=False))
        name = pair.name if pair else self.name
        flags = ["-p", name] if name else [f"--{role}={path}" for role, path in by_role.items()]
        flags += [] if name or "draft" in by_role else ["--drafter", "none"]
        downloaded = plan.to_download if plan else 0
        return DownloadResult(
            pair.name if pair else None,
            not downloaded,
            downloaded,
            by_role,
            pair.target if pair else None,
            pair.draft if pair else None,
            self._comparison,
            tuple(self.notes),
            shlex.join(["specdec", "run", *flags]),
        )


def _checked(model: str, role: Literal["target", "draft"]) -> str:
    model = model_name(model, role)
    if reference := references.parse(model):
        return str(reference)
    if not (model.endswith(".gguf") and Path(model).is_file()):
        raise DownloadError(
            f"{model!r} is no model on the Hub, and no file", "Write REPO:QUANT, REPO/FILE.gguf, or a file's path."
        )
    return model


def _planned(source: ModelSource) -> PlannedModel:
    """A model with what the cache has of its files."""
    planned = None
    if remote := source.remote:
        files = []
        for file in remote.files:
            here, begun = cache.is_here(remote, file), cache.begun(remote, file)
            path = str(cache.path_of(remote, file))
            files.append(PlannedFile(file.name, file.size, file.digest, here, begun, path))
        planned = PlannedRemote(**{**asdict(remote), "files": tuple(files)})
    return PlannedModel(source.name, str(source.path) if source.path else None, planned)


def _path(source: ModelSource) -> Path:
    """The first file of a model on this machine."""
    if source.remote:
        return cache.path_of(source.remote, source.remote.files[0])
    return source.path or Path(source.name)


def _verdict(paths: Sequence[Path]) -> str:
    """The verdict on the files as they lie on the disk. Raises IncompatiblePair."""
    headers = [read_header(path) for path in paths]
    if len(headers) == 1:
        return "alone"
    comparison = tokenizer_comparison.compare(*headers)
    comparison.require()
    return comparison.verdict


def _record(name: str, remotes: Sequence[RemoteModel], verdict: str) -> PulledPair:
    """Keep a pair under its name, and make a profile of that name unless there is one."""
    target, draft = remotes[0], remotes[1] if len(remotes) > 1 else None
    today = date.today().isoformat()
    old = pulled_pairs.readable(name)
    makes_profile = name not in profiles.names()
    pair = PulledPair(name, target, draft, verdict, today, makes_profile or bool(old and old.made_profile))
    pulled_pairs.save(pair)
    if makes_profile:
        profiles.save(name, target.reference, draft.reference if draft else None, today)
    return pair
