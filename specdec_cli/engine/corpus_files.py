"""`--ngram-corpus`: which files on disk a corpus is, and their text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.errors import UsageError
from specdec_cli.user_files import expanded

_LOOKED_AT = 8 << 10  # bytes in which a binary file has a NUL
_MOST_EACH = 4 << 20  # bytes of a file in a folder: what is larger was hardly written by hand
_MOST_IN_ALL = 128 << 20  # bytes: sorting takes some 40 times the tokens' number


@dataclass(frozen=True, slots=True)
class Source:
    """A file that may be text. named: the user asked for this very file, so it must be."""

    path: Path
    size: int
    mtime_ns: int
    named: bool


def find(names: Sequence[str]) -> list[Source]:
    """The files that were named, and of folders all files that are not hidden and not too large, each once.

    Raises UsageError if a name is of neither, if a file that was named is not text, if there is nothing or too much.
    """
    chosen: dict[Path, Source] = {}
    for name in names:
        path = expanded(name)
        try:
            for source in _in_folder(path) if path.is_dir() else [_named(path)]:
                chosen.setdefault(source.path, source)
        except OSError as error:
            raise _unusable(path, error) from None
    sources = list(chosen.values())
    size = sum(source.size for source in sources)
    if size > _MOST_IN_ALL:
        what = f"the corpus has {size / 1e6:,.0f} MB in {len(sources):,} files"
        raise UsageError(f"{what}, the most is {_MOST_IN_ALL / 1e6:,.0f} MB", "Name the folders that matter.")
    if not size:
        raise UsageError(f"there is nothing in the corpus {', '.join(names)}", "Name files or folders of text.")
    return sources


def _in_folder(folder: Path) -> Iterator[Source]:
    def stop_at_first(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    for place, folders, files in os.walk(folder.resolve(), onerror=stop_at_first):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            with suppress(OSError):  # a dangling link
                about = path.stat()
                if not name.startswith(".") and path.is_file() and about.st_size <= _MOST_EACH:
                    yield Source(path, about.st_size, about.st_mtime_ns, named=False)


def _named(path: Path) -> Source:
    about = path.stat()
    if not path.is_file():
        raise UsageError(f"the corpus {path} is a device", "Name a file or a folder of text.")
    with path.open("rb") as file:
        _require_text(file.read(_LOOKED_AT), path)
    return Source(path.resolve(), about.st_size, about.st_mtime_ns, named=True)


def _require_text(start: bytes, path: Path) -> None:
    if b"\0" in start:
        raise UsageError(f"the corpus {path} is not text: it holds zero bytes", "Name a file or a folder of text.")


def _unusable(path: Path, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no file or folder {path} for the corpus", "Check --ngram-corpus.")
    return UsageError(f"cannot read the corpus {path}: {error.strerror}", "Check the path and permissions.")


def read(source: Source) -> str | None:
    """A file's text; None if it is none. Raises UsageError instead if the user named this very file."""
    try:
        data = source.path.read_bytes()
        _require_text(data[:_LOOKED_AT], source.path)
        return data.decode("utf-8-sig")
    except OSError as error:
        problem = _unusable(source.path, error)
    except UsageError as error:
        problem = error
    except UnicodeDecodeError as error:
        where = f"byte {data[error.start]:#04x} at {error.start:,}"
        problem = UsageError(f"the corpus {source.path} is not UTF-8 text: {where}", "Convert it: iconv -t UTF-8")
    if source.named:
        raise problem
    return None
