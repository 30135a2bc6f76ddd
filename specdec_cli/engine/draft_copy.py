"""Behind `draft prune` and `draft quantize`: a copy made beside its place, examined, put there, and remembered."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.draft_making import CopyDisplay
from specdec_cli.display.pair_tables import size
from specdec_cli.engine import model_source as sources
from specdec_cli.hub.locate import locate
from specdec_cli.llama import quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.quantize import Copy, Unfit
from specdec_cli.models import tokenizer_comparison, user_files
from specdec_cli.models.gguf import part_names, read_header
from specdec_cli.models.gguf_header import Header, require_runnable
from specdec_cli.store import made_drafts as drafts


@dataclass(frozen=True, slots=True)
class Target:
    """A model to make a draft of."""

    path: Path
    header: Header

    @classmethod
    def of(cls, name: str) -> Target:
        """The model of a name. Raises DownloadError if it is not here, SpecdecError if no draft can be made of it."""
        model = sources.named(name, "target")
        pull = ["specdec", "pull", name] if sources.is_profile(name) else ["specdec", "pull", "--target", name]
        path = locate(model, shlex.join(pull))
        header = read_header(path)
        require_runnable(header)
        tokenizer_comparison.compare(header, header).require()  # there must be a tokenizer
        return cls(path, header)


def check_place(out: Path, target: Target, force: bool) -> None:
    """Raise UsageError if a draft cannot be called so, SpecdecError if its folder cannot be written to."""
    if out.suffix != ".gguf" or "\0" in str(out):
        raise UsageError(f"{str(out)!r} is no name for a draft", "Name a file ending in .gguf.")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "Make it first, or write elsewhere.")
    if out.is_symlink() and not out.exists():
        raise UsageError(f"{out} is a link to nothing", "Name another file with -o, or remove the link.")
    if out.exists():
        if any(part.exists() and out.samefile(part) for part in _parts(target.path)):
            raise UsageError(f"{out} is the target itself", "Name another file with -o.")
        if not out.is_file():
            raise UsageError(f"{out} is a {'folder' if out.is_dir() else 'device'}", "Name a file with -o.")
        if not force:
            raise UsageError(f"{out} exists already", "Name another file with -o, or add --force.")
    user_files.require_writable(out.parent)


def require_room(out: Path, needed: int) -> None:
    """Raise SpecdecError if the disk has no room for so many bytes."""
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        raise SpecdecError(
            f"about {size(needed)} are needed in {out.parent}; {size(free)} are free", "Free some, or write elsewhere."
        )


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A folder beside a file to be, which then only has to be renamed; whatever happens, the folder goes away."""
    folder = Path(tempfile.mkdtemp(prefix=".specdec-", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy(target: Target, wanted: Copy, tensors: int, silent: bool, interrupt: Interrupt) -> list[Unfit]:
    """Write a copy, showing how far it is."""
    with CopyDisplay(f"writing {wanted.out.name}", tensors, silent) as display:
        return quantize.write(wanted, interrupt, display.begun)


def examine(made: Path, target: Target, layers: int | None, tensors: int, interrupt: Interrupt) -> Header:
    """Raise SpecdecError unless a copy has the target's tokenizer, so many layers and tensors, and loads."""
    header = read_header(made)
    comparison = tokenizer_comparison.compare(target.header, header)
    found = (header.setting("block_count"), len(header.tensors))
    if comparison.verdict != "identical" or found != (layers, tensors):
        why = comparison.reason or f"it has {found[0]} layers of {found[1]} tensors, not {layers} of {tensors}"
        raise SpecdecError(f"the copy of {target.path.name} came out wrong: {why}", "Please report this.")
    Model(made, 0, interrupt).close()
    return header


def put(made: Path, out: Path, target: Target, how: str) -> list[str]:
    """Give a copy its name, and remember it for its target. Returns notes."""
    made.replace(out)
    try:
        drafts.remember(target.path, out, how)
    except SpecdecError as error:
        return [f"it is not remembered for --drafter self, name it with -md: {error}"]
    return []


def _parts(path: Path) -> list[Path]:
    return [path.with_name(name) for name in part_names(path.name)]
