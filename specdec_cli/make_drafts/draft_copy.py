"""Copies of a target with fewer layers or fewer bits: written beside their place, examined, then renamed."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from msgspec import UNSET, UnsetType

from specdec_cli import user_files
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.model_loading import load_model
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.header import Header, Tensor, shown
from specdec_cli.gguf.reader import part_names, read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary, require_tokenizer
from specdec_cli.llama import host, quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.quantize import Copy, Unfit
from specdec_cli.pairs import made_drafts
from specdec_cli.pairs.hub.cache import locate
from specdec_cli.pairs.sources import is_profile, model_name
from specdec_cli.user_files import format_bytes

BLOCK = re.compile(r"blk\.(\d+)\.(.+)", re.DOTALL)

CopyProgress = Callable[[str, int, int], None]
"""Called with a file's name, how many of its tensors are written, and how many it will have."""


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The layers that are left after `dropped`, and how often they agree with the target. None: all are there."""

    layers: tuple[int, ...]
    dropped: int | None
    agreement: float


@dataclass(frozen=True, slots=True)
class DraftCopyResult:
    """A copy of a target with fewer layers or bits. kept: its layers as ranges. unfit: tensors of another type than
    asked for. agreement: with the target, if it was measured. search: how the layers were chosen.
    """

    target: str
    out: str
    layers: tuple[int, ...]
    kept: str
    of: int | None
    type: str
    bytes: int
    target_bytes: int
    unfit: tuple[Unfit, ...]
    notes: tuple[str, ...]
    agreement: float | None
    seconds: float
    run: str
    search: tuple[SearchStep, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What all copies have in common. target: a file, a pulled model or a profile. force: whether to overwrite `out`.

    threads: None for all cores. Setting `interrupt` ends the work, with nothing left behind.
    """

    target: str
    out: Path
    force: bool = False
    threads: int | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    progress: CopyProgress = lambda *_: None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads cannot be {self.threads}", "Give -t 1 or more, or leave it out.")


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A copy to make of a target. folder: beside `out`; it is removed in the end, whatever happens."""

    options: CopyOptions
    target: Path
    header: Header
    folder: Path
    threads: int

    def write(self, name: str, drop: tuple[int, ...] = (), file_type: int | None = None) -> tuple[Unfit, ...]:
        """Write a copy into the folder. Returns the tensors that got another type than they should have."""
        copy = Copy(self.target, self.folder / name, self.threads, drop, file_type)
        total = len(tensors_without(self.header, drop))
        progress = self.options.progress
        progress(name, 0, total)
        unfit = quantize.write(copy, self.options.interrupt, lambda number: progress(name, number - 1, total))
        progress(name, total, total)
        return tuple(unfit)


def require_copyable(header: Header) -> None:
    """Refuse what llama.cpp's quantiser would write wrongly, whatever is asked of it."""
    alignment = header.metadata.get("general.alignment", 32)
    if alignment != 32:
        what = (
            f"{header.name} is aligned to {shown(alignment)} bytes: llama.cpp would write a copy that nothing can read"
        )
        raise SpecdecError(what, "Use a file with the usual alignment of 32.")


def find_target(name: str) -> tuple[Path, Header]:
    """The model of a name. Raises DownloadError if it is not here, SpecdecError if no draft can be made of it."""
    flag = [] if is_profile(name) else ["--target"]
    path = locate(model_name(name, "target"), shlex.join(["specdec", "pull", *flag, name]))
    header = read_header(path)
    require_runnable(header)
    require_tokenizer(header)
    require_sound_vocabulary(header)
    tokenizer_comparison.compare(header, header).require()  # there must be a tokenizer
    return path, header


@contextmanager
def copy_job(options: CopyOptions, target: Path, header: Header, needed: int) -> Iterator[CopyJob]:
    """A folder beside the draft to be, which then only has to be renamed. needed: bytes."""
    out = options.out
    require_place(out, target, options.force)
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        raise SpecdecError(
            f"about {format_bytes(needed)} are needed in {out.parent}; {format_bytes(free)} are free",
            "Free some, or write elsewhere.",
        )
    folder = Path(tempfile.mkdtemp(prefix=".specdec-", dir=out.parent))
    try:
        yield CopyJob(options, target, header, folder, options.threads or host.physical_cores())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_place(out: Path, target: Path, force: bool) -> None:
    """Raise UsageError if a draft cannot have this name, SpecdecError if its folder cannot be written to."""
    if out.suffix != ".gguf" or "\0" in str(out):
        raise UsageError(f"{str(out)!r} is no name for a draft", "Name a file ending in .gguf.")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "Make it first, or write elsewhere.")
    if out.is_symlink() and not out.exists():
        raise UsageError(f"{out} is a link to nothing", "Name another file with -o, or remove the link.")
    if out.exists():
        parts = [target.with_name(name) for name in part_names(target.name)]
        if any(part.exists() and out.samefile(part) for part in parts):
            raise UsageError(f"{out} is the target itself", "Name another file with -o.")
        if not out.is_file():
            raise UsageError(f"{out} is a {'folder' if out.is_dir() else 'device'}", "Name a file with -o.")
        if not force:
            raise UsageError(f"{out} exists already", "Name another file with -o, or add --force.")
    user_files.require_writable(out.parent)


def make_copy(
    job: CopyJob,
    layers: tuple[int, ...],
    drop: tuple[int, ...] = (),
    file_type: int | None = None,
    remember: bool = True,
) -> DraftCopyResult:
    """Write a copy, examine it, put it in its place, and remember it for `--drafter self` if so asked."""
    out, name, count = job.options.out, job.options.target, job.header.setting("block_count")
    unfit = job.write(out.name, drop, file_type)
    made, kept = job.folder / out.name, ranges(layers)
    header = _examine(made, job, len(layers) if layers else count, len(tensors_without(job.header, drop)))
    made.replace(out)
    notes: tuple[str, ...] = ()
    try:
        if remember:
            made_drafts.remember(job.target, out, f"{header.quantisation}, layers {kept} of {count}")
    except SpecdecError as error:
        notes = (f"it is not remembered for --drafter self, name it with -md: {error}",)
    run = shlex.join(["specdec", "run", "-p" if is_profile(name) else "-m", name, "--drafter", "self"])
    what = layers, kept, count, header.quantisation, header.size, job.header.size
    return DraftCopyResult(str(job.target), str(out), *what, unfit, notes, None, 0.0, f'{run} "..."')


def _examine(made: Path, job: CopyJob, layers: int | None, tensors: int) -> Header:
    """Raise SpecdecError unless a copy has the target's tokenizer, so many layers and tensors, and loads."""
    header = read_header(made)
    comparison = tokenizer_comparison.compare(job.header, header)
    actual = (header.setting("block_count"), len(header.tensors))
    if comparison.verdict != "identical" or actual != (layers, tensors):
        why = comparison.reason or f"it has {actual[0]} layers of {actual[1]} tensors, not {layers} of {tensors}"
        raise SpecdecError(f"the copy of {job.target.name} came out wrong: {why}", "Please report this.")
    load_model(made, Placement(0), job.options.interrupt).close()
    return header


def tensors_without(header: Header, drop: Iterable[int]) -> list[Tensor]:
    dropped = set(drop)
    return [tensor for tensor in header.tensors if layer_of(tensor) not in dropped]


def ranges(layers: Iterable[int]) -> str:
    """Layers as `layers_of` reads them."""
    groups = groupby(enumerate(sorted(layers)), lambda place: place[1] - place[0])
    runs = [[layer for _, layer in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def layer_of(tensor: Tensor) -> int | None:
    """The number of the layer that a tensor belongs to, if it belongs to one."""
    match = BLOCK.fullmatch(tensor.name)
    return int(match[1]) if match else None
