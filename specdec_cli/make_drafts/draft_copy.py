"""Copies of a target with fewer layers or fewer bits: written next to their destination, checked, then renamed."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import perf_counter

from msgspec import UNSET, UnsetType

from specdec_cli import user_files
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.header import Header, Tensor, shown
from specdec_cli.gguf.reader import part_names, read_header
from specdec_cli.gguf.runnable import require_runnable, require_sound_vocabulary, require_tokenizer
from specdec_cli.llama import host, quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.llama.quantize import Copy, Unfit
from specdec_cli.pairs import made_drafts, pulled_pairs
from specdec_cli.pairs.hub.cache import locate
from specdec_cli.pairs.profiles import is_profile, model_name
from specdec_cli.settings.settings import check_value
from specdec_cli.user_files import format_bytes
from specdec_cli.weights.model_loading import load_model

BLOCK = re.compile(r"blk\.(\d+)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The layers left after `dropped` (None: all), and how often a model of them agrees with the target."""

    layers: tuple[int, ...]
    dropped: int | None
    agreement: float


@dataclass(frozen=True, slots=True)
class DraftCopyResult:
    """A copy of a target with fewer layers or bits. kept: its layers as ranges. unfit: tensors that didn't get the
    requested type. agreement: with the target, if measured. search: how the layers were chosen.
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


class CopyProgress:
    """Receives progress while a copy is made. This class shows nothing."""

    def planned_copy(self, bytes_: int, target_bytes: int, unfit: Sequence[Unfit]) -> None:
        """A copy of about `bytes_` with fewer bits is about to be made. unfit: tensors that will get another type."""

    def copying(self, name: str, done: int, total: int) -> None:
        """`done` of a file's `total` tensors are written."""

    def searching(self, layers: int, keep: int, prompts: int, tokens: int, trials: int, seconds: float) -> None:
        """The search begins, after a first trial. seconds: an estimate for all of it."""

    def dropped(self, step: SearchStep, kept: str, bytes_: int) -> None:
        """A step is done. kept: the remaining layers, as ranges; bytes_: of a draft with them."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of all copies. target: a file, a pulled model or a profile. force: whether to overwrite `out`.

    threads: None for all cores. Setting `interrupt` ends the work and leaves no files behind.
    """

    target: str
    out: Path
    force: bool = False
    threads: int | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    progress: CopyProgress = field(default_factory=CopyProgress)

    def __post_init__(self) -> None:
        check_value("threads", self.threads)


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A copy to make of a target. folder: next to `out`; it is always removed at the end."""

    options: CopyOptions
    target: Path
    header: Header
    folder: Path
    threads: int
    started: float

    def write(self, name: str, drop: Sequence[int] = (), file_type: int | None = None) -> tuple[list[Unfit], int]:
        """Write a copy into the folder. Returns the tensors that didn't get the requested type, and how many it has."""
        copy = Copy(self.target, self.folder / name, self.threads, tuple(drop), file_type)
        total = len(self.header.tensors) - len(tensors_of(self.header, drop))
        progress = self.options.progress.copying
        progress(name, 0, total)
        unfit = quantize.write(copy, self.options.interrupt, lambda number: progress(name, number - 1, total))
        progress(name, total, total)
        return unfit, total

    def plan(self, file_type: int) -> tuple[list[Unfit], int]:
        """The tensors that a type doesn't fit, and the bytes of a copy."""
        copy = Copy(self.target, self.folder / "planned.gguf", self.threads, file_type=file_type)
        unfit, size = quantize.plan(copy, self.options.interrupt)
        return unfit, self.header.data_offset + size

    def finish(
        self,
        layers: tuple[int, ...] | None = None,
        file_type: int | None = None,
        search: tuple[SearchStep, ...] | UnsetType = UNSET,
        remember: bool = True,
    ) -> DraftCopyResult:
        """Write the draft, check it and rename it. layers: those to keep; None for all. remember: whether
        `--drafter self` will use it.
        """
        out, name, count = self.options.out, self.options.target, self.header.setting("block_count")
        every = tuple(range(count)) if type(count) is int else ()
        layers = every if layers is None else layers
        drop = [layer for layer in every if layer not in layers]
        unfit, tensors = self.write(out.name, drop, file_type)
        made, kept = self.folder / out.name, ranges(layers)
        header = self._examine(made, len(layers) if layers else count, tensors)
        made.replace(out)
        how = f"{header.quantisation}, layers {kept} of {count}"
        return DraftCopyResult(
            target=str(self.target),
            out=str(out),
            layers=layers,
            kept=kept,
            of=count,
            type=header.quantisation,
            bytes=header.size,
            target_bytes=self.header.size,
            unfit=tuple(unfit),
            notes=remembered(self.target, out, how) if remember else (),
            agreement=search[-1].agreement if search else None,
            seconds=perf_counter() - self.started,
            run=use_command(name, "-md", str(out)),
            search=search,
        )

    def _examine(self, made: Path, layers: int | None, tensors: int) -> Header:
        """Raise SpecdecError unless a copy has the target's tokenizer and the right layers and tensors, and loads."""
        header = read_header(made)
        comparison = tokenizer_comparison.compare(self.header, header)
        actual = (header.setting("block_count"), len(header.tensors))
        if comparison.verdict != "identical" or actual != (layers, tensors):
            why = comparison.reason or f"it has {actual[0]} layers, {actual[1]} tensors, not {layers} and {tensors}"
            raise SpecdecError(f"the copy of {self.target.name} is wrong: {why}", "Please report this.")
        load_model(made, Placement(0), self.options.interrupt).close()
        return header


def remembered(target: Path, out: Path, how: str) -> tuple[str, ...]:
    """Record a draft for `--drafter self`. Returns a note if that fails."""
    try:
        made_drafts.remember(target, out, how)
    except SpecdecError as error:
        return (f"--drafter self will not find this draft, so name it with -md: {error}",)
    return ()


def find_target(name: str) -> tuple[Path, Header]:
    """A model's file and header. Raises DownloadError if it isn't here, SpecdecError if no draft can be made of it."""
    flag, model = [] if is_profile(name) else ["--target"], model_name(name, "target")
    pair = pulled_pairs.readable(name)
    path = (pair and pair.path(model)) or locate(model, shlex.join(["specdec", "pull", *flag, name]))
    header = read_header(path)
    require_runnable(header)
    require_tokenizer(header)
    require_sound_vocabulary(header)
    tokenizer_comparison.compare(header, header).require()  # there must be a tokenizer
    return path, header


@contextmanager
def copy_job(options: CopyOptions) -> Iterator[CopyJob]:
    """Make a folder next to `out`, so that the finished draft only needs to be renamed."""
    target, header = find_target(options.target)
    require_copyable(header)
    require_place(options.out, target, options.force)
    user_files.remove_abandoned(options.out.parent, ".specdec-????????")
    started, folder = perf_counter(), Path(tempfile.mkdtemp(prefix=".specdec-", dir=options.out.parent))
    try:
        yield CopyJob(options, target, header, folder, options.threads or host.physical_cores(), started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_copyable(header: Header) -> None:
    """Raise SpecdecError for a model that llama.cpp's quantiser can't copy correctly."""
    alignment = header.metadata.get("general.alignment", 32)
    if alignment != 32:
        what = f"{header.name} is aligned to {shown(alignment)} bytes: llama.cpp would write an unreadable copy"
        raise SpecdecError(what, "Use a file with the usual alignment of 32.")


def require_room(folder: Path, needed: int, fix: str = "Free some space, or write elsewhere.") -> None:
    """Raise SpecdecError unless a folder's disk has `needed` bytes free."""
    if needed > (free := shutil.disk_usage(folder).free):
        what = f"about {format_bytes(needed)} are needed in {folder}, but only {format_bytes(free)} are free"
        raise SpecdecError(what, fix)


def require_place(out: Path, target: Path, force: bool, drafts: Iterable[Path] = ()) -> None:
    """Raise UsageError if a draft can't have this name, SpecdecError if its folder isn't writable. drafts: others that
    must not be overwritten.
    """
    if out.suffix != ".gguf" or "\0" in str(out):
        raise UsageError(f"a draft cannot be named {str(out)!r}", "Name a file ending in .gguf.")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "Create it, or write elsewhere.")
    if out.is_symlink() and not out.exists():
        raise UsageError(f"{out} is a broken link", "Name another file with -o, or remove the link.")
    if out.exists():
        models = dict.fromkeys(drafts, "a draft that is still needed") | {target: "the target itself"}
        for model, what in models.items():
            parts = [model.with_name(name) for name in part_names(model.name)]
            if any(part.exists() and out.samefile(part) for part in parts):
                raise UsageError(f"{out} is {what}", "Name another file with -o.")
        if not out.is_file():
            raise UsageError(f"{out} is a {'folder' if out.is_dir() else 'device'}", "Name a file with -o.")
        if not force:
            raise UsageError(f"{out} already exists", "Name another file with -o, or add --force.")
    user_files.require_writable(out.parent)


def use_command(target: str, *flags: str) -> str:
    """The command that uses a draft made for a target."""
    return shlex.join(["specdec", "run", "-p" if is_profile(target) else "-m", target, *flags]) + ' "..."'


def tensors_of(header: Header, layers: Iterable[int]) -> list[Tensor]:
    numbers = set(layers)
    matches = ((tensor, BLOCK.fullmatch(tensor.name)) for tensor in header.tensors)
    return [tensor for tensor, match in matches if match and int(match[1]) in numbers]


def ranges(layers: Iterable[int]) -> str:
    """Layers as ranges, in the form that `layers_of` reads."""
    groups = groupby(enumerate(sorted(layers)), lambda place: place[1] - place[0])
    runs = [[layer for _, layer in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
