"""The work of `specdec pull`, step by step: resolve, read, compare, plan, download, verify, record."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.display.download_progress import DownloadDisplay
from specdec_cli.display.pair_tables import size
from specdec_cli.engine import model_source as sources
from specdec_cli.engine.config_layers import require_known
from specdec_cli.engine.model_source import Source
from specdec_cli.hub import cache
from specdec_cli.hub.download import download
from specdec_cli.hub.failures import reaching
from specdec_cli.hub.repository import RemoteModel
from specdec_cli.models import draft_candidates as families
from specdec_cli.models import profiles, references, tokenizer_comparison
from specdec_cli.models.assessment import CONTEXT
from specdec_cli.models.gguf import read_header
from specdec_cli.models.gguf_header import require_runnable
from specdec_cli.store import pulled_pairs as pairs
from specdec_cli.store.pulled_pairs import PulledPair

_MOST_PROPOSALS = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be pulled. name: a profile's, or one for the pair; empty: to be made of the files' names.

    draft: None if drafts are to be proposed, or if a profile has none and `complete` says so.
    """

    name: str
    target: str
    draft: str | None
    complete: bool

    @classmethod
    def of(cls, name: str | None, target: str | None, draft: str | None, named: str | None) -> Wanted:
        """From the command line; raises UsageError if it asks for nothing or for two things."""
        if name and references.parse(name) and not target:  # a target, without the flag
            name, target = None, name
        if name and (target or draft):
            raise UsageError("a profile was named and models too", "Give a profile, or --target with --draft.")
        if name and named:
            raise UsageError("a profile has its name already", "Leave out --as, or name the models.")
        if name:
            profile = profiles.load(name)
            require_known(profile)
            return cls(name, str(profile.model("target")), profile.model("draft"), True)
        if not target:
            raise UsageError("nothing was named to pull", "Give a profile (specdec ls lists them), or --target.")
        target = _checked(target, "target")
        draft = _checked(draft, "draft") if draft else None
        if named and not all(references.parse(model) for model in (target, draft) if model):
            raise UsageError("only a pair that is all on the Hub is kept under a name", "Leave out --as.")
        if named and not pairs.is_free(pairs.check_name(named), (target, *([draft] if draft else []))):
            raise UsageError(f"{named!r} is the name of another pair", "Choose another name with --as.")
        return cls(named or "", target, draft, draft is not None)


def _checked(model: str, role: sources.Role) -> str:
    model = sources.named(model, role)
    if reference := references.parse(model):
        return str(reference)
    if not (model.endswith(".gguf") and Path(model).is_file()):
        raise DownloadError(
            f"{model!r} is no model on the Hub, and no file", "Write REPO:QUANT, REPO/FILE.gguf, or a file's path."
        )
    return model


class Puller:
    """One pull. The steps are called in the order in which they stand here."""

    def __init__(self, wanted: Wanted, silent: bool) -> None:
        self.wanted = wanted
        self.notes: list[str] = []
        self._silent = silent
        self._target: Source | None = None
        self._draft: Source | None = None
        self._check: dict[str, Any] | None = None

    def recorded(self) -> PulledPair | None:
        """The pair, if it was pulled before and is still there, whole; nobody is asked for that."""
        for name in pairs.names():
            pair = pairs.readable(name)  # one that is damaged is written anew
            if pair and self.wanted.name in ("", name) and self._is(pair) and pair.is_here():
                return pair
        return None

    def _is(self, pair: PulledPair) -> bool:
        return pair.references == (self.wanted.target, self.wanted.draft)

    def read_target(self) -> Source:
        """Resolve the target and read its header."""
        self._target = sources.read(self.wanted.target, self.notes, here_first=False)
        require_runnable(self._target.header)
        return self._target

    def propose(self) -> list[dict[str, Any]]:
        """Drafts with the target's tokenizer, found so by their headers, the likeliest to pay first."""
        target = self._read
        found, failure = [], None
        for name in families.candidates(target.header, self.wanted.target)[:_MOST_PROPOSALS]:
            try:
                draft = sources.read(name, self.notes, here_first=True)
            except SpecdecError as error:
                failure = failure or error
                self.notes.append(f"{name} was not looked at: {error}")
                continue
            comparison = tokenizer_comparison.compare(target.header, draft.header)
            ratio = draft.header.n_active_params / max(1, target.header.n_active_params)
            if comparison.verdict != "incompatible" and ratio < 1:
                found.append(
                    {
                        "name": name,
                        "size": draft.header.size,
                        "n_params": draft.header.n_params,
                        "ratio": ratio,
                        "verdict": comparison.verdict,
                    }
                )
        if not found and failure:
            raise failure
        if not found:
            pre = target.header.metadata.get("tokenizer.ggml.pre")
            raise SpecdecError(f"no draft is known for {target.name} (tokenizer {pre!s:.40})", "Name one with --draft.")
        return sorted(found, key=lambda proposal: families.rank(proposal["ratio"]))

    def choose(self, draft: str) -> None:
        """Take one of the proposed drafts."""
        self.wanted = replace(self.wanted, draft=draft, complete=True)

    def compare(self) -> None:
        """Read the draft's header and compare the tokenizers. Raises IncompatiblePair before anything is fetched."""
        if self.wanted.draft is None:
            return
        self._draft = sources.read(self.wanted.draft, self.notes, here_first=False)
        require_runnable(self._draft.header)
        comparison = tokenizer_comparison.compare(self._read.header, self._draft.header)
        comparison.require()
        self._check = sources.judged(self._read, self._draft, comparison, CONTEXT)

    @property
    def _read(self) -> Source:
        if self._target is None:
            raise RuntimeError("read_target comes first")
        return self._target

    @property
    def _remote(self) -> list[RemoteModel]:
        """The models that are the Hub's."""
        return [source.remote for source in (self._read, self._draft) if source and source.remote]

    def plan(self) -> dict[str, Any]:
        """What a download would fetch, where to, and what is known of the pair."""
        with reaching(self.wanted.target):
            return self._plan()

    def _plan(self) -> dict[str, Any]:
        files = [(model, file) for model in self._remote for file in model.files]
        rest = [file.size - cache.begun(model, file) for model, file in files if not cache.is_here(model, file)]
        return {
            "name": self.wanted.name or self._name(),
            "recorded": all(source.remote for source in (self._read, self._draft) if source),
            "target": self._planned(self._read),
            "draft": self._planned(self._draft),
            "to_download": sum(rest),
            "free": cache.free_space(),
            "cache": str(cache.cache_dir()),
            "check": self._check,
            "notes": self.notes,
        }

    def _planned(self, source: Source | None) -> dict[str, Any] | None:
        if source is None:
            return None
        about = source.to_json()
        if source.remote:
            for file, told in zip(source.remote.files, about["remote"]["files"], strict=True):
                told["here"] = cache.is_here(source.remote, file)
                told["begun"] = cache.begun(source.remote, file)
                told["path"] = str(cache.path_of(source.remote, file))
        return about

    def _name(self) -> str:
        """The pair's name: of the files, if both are the Hub's; what is half local is not recorded."""
        sides = [source.remote for source in (self._read, self._draft) if source]
        if not all(sides) or not self._read.remote:
            return ""
        try:
            return pairs.name_of(self._read.remote, self._draft.remote if self._draft else None)
        except UsageError as error:
            raise UsageError(str(error), "Give it a name with --as NAME.") from None

    def download(self, plan: dict[str, Any]) -> PulledPair | None:
        """Fetch what is not here yet, compare again what lies on the disk, and record the pair.

        Returns None for a pair that is not all the Hub's, and so is not recorded.
        """
        if plan["to_download"] > plan["free"]:
            raise DownloadError(
                f"{size(plan['to_download'])} are to be downloaded, {size(plan['free'])} are free in {plan['cache']}",
                "Free some space, or set HF_HOME to a larger disk.",
            )
        if plan["recorded"]:
            pairs.require_writable()
        files = [(model, file) for model in self._remote for file in model.files]
        with DownloadDisplay([file for _, file in files], self._silent) as display:
            for model, file in files:
                download(model, file, display)
                display.done(file)
        verdict = self._verified()
        target, draft = self._read.remote, self._draft.remote if self._draft else None
        if target is None or (self._draft and draft is None):
            return None
        name, today = plan["name"], date.today().isoformat()
        old = pairs.readable(name)
        makes_profile = name not in profiles.names()
        pair = PulledPair(name, target, draft, verdict, today, makes_profile or bool(old and old.made_profile))
        pairs.save(pair)
        if makes_profile:
            profiles.save(name, target.reference, draft.reference if draft else None, today)
        return pair

    def _verified(self) -> str:
        """The verdict on the files as they lie on the disk."""
        headers = [read_header(path) for path in self.paths()]
        if len(headers) == 1:
            return "alone"
        comparison = tokenizer_comparison.compare(*headers)
        comparison.require()
        return comparison.verdict

    def paths(self) -> list[Path]:
        """The first file of target and draft on this machine."""
        found = []
        for source in (self._read, self._draft):
            if source and source.remote:
                found.append(cache.path_of(source.remote, source.remote.files[0]))
            elif source and source.path:
                found.append(source.path)
        return found

    def result(self, pair: PulledPair | None, plan: dict[str, Any] | None) -> dict[str, Any]:
        """What came of it. plan: None if nothing had to be done."""
        paths = [path for path in pair.paths() if path] if pair else self.paths()
        roles = dict(zip(("target", "draft"), map(str, paths), strict=False))
        name = pair.name if pair else self.wanted.name
        flags = ["-p", name] if name else [f"--{role}={path}" for role, path in roles.items()]
        flags += [] if name or "draft" in roles else ["--drafter", "none"]
        return {
            "name": pair.name if pair else None,
            "already": plan is None or not plan["to_download"],
            "downloaded": plan["to_download"] if plan else 0,
            "paths": roles,
            "target": asdict(pair.target) if pair else None,
            "draft": asdict(pair.draft) if pair and pair.draft else None,
            "check": self._check,
            "notes": self.notes,
            "run": shlex.join(["specdec", "run", *flags]),
        }
