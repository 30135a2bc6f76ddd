"""A model by whatever names it, here or on the Hub, with its header read: what `check` and `pull` compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from specdec_cli.decoding.errors import DownloadError, SpecdecError, UsageError
from specdec_cli.hub import cache, ranges, repository
from specdec_cli.hub.repository import RemoteModel
from specdec_cli.models import profiles, references
from specdec_cli.models.assessment import Room, assess
from specdec_cli.models.gguf import read_header, read_model
from specdec_cli.models.gguf_header import Header, require_runnable
from specdec_cli.models.tokenizer_comparison import Comparison

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class Source:
    """A model whose header has been read. Either `remote` or `path` is there: on the Hub, or on this machine."""

    name: str
    header: Header
    remote: RemoteModel | None
    path: Path | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.path) if self.path else None,
            "remote": asdict(self.remote) if self.remote else None,
        }


def is_profile(name: str) -> bool:
    """Whether a name is a profile's, and not a file's or a model's on the Hub."""
    return not (references.parse(name) or name.endswith(".gguf")) and name in profiles.names()


def named(name: str, role: Role) -> str:
    """What a name stands for: a profile's name for its target or draft, all else for itself."""
    if not is_profile(name):
        return name
    found = profiles.load(name).model(role)
    if found is None:
        raise UsageError(f"the profile {name} has no draft", "Name one, or choose another profile.")
    return found


def read(name: str, notes: list[str], here_first: bool) -> Source:
    """Read a model's header, of one on the Hub over ranges.

    here_first: whether a copy in the Hub's cache will do. notes: what the user should know is put there.
    Raises DownloadError if the Hub does not deliver, SpecdecError if the file is no model.
    """
    reference = references.parse(name)
    if reference is None:
        if not name.endswith(".gguf") and not Path(name).exists():
            raise DownloadError(
                f"{name!r} is neither a file, nor a profile, nor a model on the Hub",
                "Write PATH.gguf, REPO:QUANT, REPO/FILE.gguf or a profile's name (specdec ls).",
            )
        return Source(name, read_header(Path(name)), None, Path(name))
    if here_first and (path := cache.find(reference)):
        return Source(name, read_header(path), None, path)
    remote = repository.resolve(reference)
    header = read_model(remote.files[0].name, ranges.opener(remote, notes))
    return Source(name, header, remote, None)


def problems(source: Source) -> list[str]:
    """Why llama.cpp cannot run a model on this machine, if it cannot."""
    try:
        require_runnable(source.header)
    except SpecdecError as error:
        return [str(error)]
    return []


def room() -> Room:
    """The memory that is free on this machine."""
    from specdec_cli.llama import library, repacking

    gpu = 0
    if library.supports_gpu():
        gpu = sum(device.free for device in library.devices() if "GPU" in device.kind)
    return Room(gpu, library.available_memory(), repacking.repacked_types())


def judged(target: Source, draft: Source, comparison: Comparison, n_ctx: int) -> dict[str, Any]:
    """What is known of a pair before it is loaded, as the object that `check --json` prints."""
    about = assess(target.header, draft.header, n_ctx, room()).to_json()
    for role, source in (("target", target), ("draft", draft)):
        about[role] |= source.to_json()
    about["rounding"] = _rounding(target)
    if comparison.verdict == "incompatible":  # nothing is to be expected of it
        about["opinions"] = []
    return {**comparison.to_json(), **about}


def _rounding(target: Source) -> str | None:
    """Which of the target's passes agree bit for bit here; None of a target that is elsewhere."""
    from specdec_cli.engine.pass_costs import known_agreement

    if target.path is None:
        return None
    return str(known_agreement(target.path) or "not measured yet: specdec run --bitwise does it")
