"""The user's files and specdec's own: where they are, how to read them, and how to replace them in one step."""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError

_Schema = TypeVar("_Schema")
_MAX_YAML_BYTES = 64 << 10  # of settings or a profile; the bundled ones have about 2,000
_STREAMS = re.compile(r"/dev(/fd)?|/proc/[^/]+/fd")
_MAX_DIGITS = 20  # of an integer in JSON
_ABANDONED_S = 86_400
_BLOCK = 4096  # bytes
_CHECKED = 1 << 20  # bytes at once


def format_bytes(count: int) -> str:
    """A size in decimal units, like those of disks and the Hub: 1.2 GB."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count} B"


def require_name(name: str, what: str, ending: str | None = None) -> None:
    """Raise UsageError if a file can't be saved under a name that the user gave. what: it names, as in "a result".
    ending: one that it must not have.
    """
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith(".") or (ending and name.endswith(ending)):
        without = f", without {ending}" if ending else ""
        raise UsageError(f"{name!r} cannot be {what}'s name", f"Use letters, digits, '.', '_' and '-'{without}.")


def name_as_text(name: str) -> str:
    """The name of a file, which may not be valid text, as text."""
    return os.fsencode(name).decode(errors="replace")


def config_dir() -> Path:
    """The folder of the user's own profiles and settings."""
    return _own(platformdirs.user_config_path)


def cache_dir() -> Path:
    """The folder of what specdec can make again."""
    return _own(platformdirs.user_cache_path)


def data_dir() -> Path:
    """The folder of what the user saves."""
    return _own(platformdirs.user_data_path)


def _own(folder: Callable[..., Path]) -> Path:
    with suppress(RuntimeError):
        path = folder("specdec", appauthor=False)  # without appauthor, Windows has another folder: specdec/specdec
        if path.parts[0] != "~":  # in older versions of platformdirs
            return path
    raise UsageError("there is no home folder", "Set HOME to an absolute path.")


def bundled_dir() -> Path:
    """The folder of the bundled profiles: inside the package when installed, at the top of a checkout otherwise."""
    package = Path(__file__).parent
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def named(*folders: Path) -> dict[str, Path]:
    """The YAML files of some folders by name, sorted. A file in an earlier folder overrides one in a later folder, and
    .yaml overrides .yml.
    """
    endings = ("*.yml", "*.yaml")
    files = {path.stem: path for folder in reversed(folders) for ending in endings for path in folder.glob(ending)}
    return dict(sorted(files.items()))


def read_bytes(path: Path, most: int = 64 << 20) -> bytes:
    """The content of a file. Raises OSError, also if it isn't a regular file, and ValueError above `most` bytes."""
    require_file(path)
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError("it is too large")
    return data


def decoded(data: bytes, what: str, path: Path | None = None) -> str:
    """The text in UTF-8 bytes, without a byte order mark. what: a name for them, for the error. path: their file.
    Raises UsageError.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{what} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start:,}"
        fix = f"Convert it first: iconv -t UTF-8 {path}" if path else "Convert it first, with iconv."
        raise UsageError(problem, fix) from None


def require_file(path: Path) -> None:
    """Raise OSError if a path exists and isn't a regular file: a pipe would block, and a device has no end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file")


def checksum(path: Path) -> str:
    """The size and CRC-32 of a file, which detect damage, but no malice; 1 ms per MB, a third of a better checksum.
    Raises OSError, also if it isn't a regular file.
    """
    require_file(path)
    size = value = 0
    with path.open("rb") as file:
        while data := file.read(_CHECKED):
            size, value = size + len(data), zlib.crc32(data, value)
    return f"{size}-{value:08x}"


def parse_yaml(text: str) -> Any:
    """The data in a YAML text. Raises ValueError, with a one-line message, if it isn't YAML."""
    from specdec_cli import yaml_reader

    return yaml_reader.parse(text)


def parse_json(text: str | bytes) -> Any:
    """The data in a JSON text. Raises ValueError, with a one-line message, if it isn't JSON; NaN isn't."""
    try:
        return json.loads(text, parse_int=_whole_number, parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{error.msg} at {place}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits:.20} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, empty for an empty file. Raises UsageError if it holds anything else."""
    try:
        data = parse_yaml(read_bytes(path, _MAX_YAML_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Fix or remove the file.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a mapping", "Write one `key: value` per line.")
    return data


def expanded(name: str) -> Path:
    """A path with ~ expanded, unless it names an unknown user, for which pathlib raises."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_file(path: Path) -> bool:
    """Whether the path is a file. pathlib raises on a name that is too long and on a folder that can't be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def to_record(data: Mapping[Any, Any], schema: type[_Schema], where: str, fix: str, **known: Any) -> _Schema:
    """A file's data as the dataclass `schema`. known: fields that the file doesn't set. Raises UsageError."""
    import msgspec

    check_keys(data, [field.name for field in fields(schema) if field.name not in known], Path(where))  # type: ignore[arg-type]
    try:
        return msgspec.convert({**data, **known}, schema)
    except ValueError as error:
        what, _, place = str(error).replace("`", "").replace("Object missing", "missing").partition(" - at $.")
        raise UsageError(": ".join(filter(None, (where, place, what))), fix) from None


def check_keys(data: Iterable[Any], known: Iterable[str], path: Path) -> None:
    """Raise UsageError on the first unknown key, and suggest the nearest known one."""
    for key in data:
        if key not in known:
            raise UsageError(f"{path.name} has the unknown key {key!r:.60}", suggest(str(key)[:60], known, "Keys"))


def suggest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for a misspelt word: the nearest known word, or all of them."""
    known = list(known)
    return nearest(word, known) or f"{what}: {', '.join(known) or 'none yet'}."


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: the nearest known word; empty if none is close."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"Did you mean {close[0]!r}?" if close else ""


def write_whole(path: Path, *parts: str | bytes | memoryview) -> None:
    """Replace a file's content; a crash leaves the old or the new content. Raises SpecdecError if writing fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            for part in parts:
                file.write(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError, verb: str = "write") -> SpecdecError:
    return SpecdecError(f"cannot {verb} {path}: {error.strerror}", "Free some space, or check the folder.")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` when the block ends and is removed if the block fails. Pipes and
    devices are written to directly. Raises OSError.
    """
    if is_device(path):
        with path.open("wb") as file:
            yield file
        return
    with replacement(path) as new, new.open("wb") as file:
        yield file


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A path `beside` another. Its file replaces `path` when the block ends, and is removed if the block fails.
    Raises OSError.
    """
    new = beside(path)
    try:
        yield new
        put(new, path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def is_device(path: Path) -> bool:
    """Whether a path exists and isn't a regular file, or names an open one, like /dev/stdout."""
    return path.exists() and (not path.is_file() or _STREAMS.fullmatch(path.parent.as_posix()) is not None)


def beside(path: Path) -> Path:
    """An unused name in the folder of the file that `path` resolves to. If that file exists, there is an empty file of
    this name, which nobody else can read. Raises OSError if that file is read-only.
    """
    new = Path(os.path.realpath(path)).with_name(f"specdec-{secrets.token_hex(8)}.tmp")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        new.touch(0o600)
    return new


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove temporary files and folders that killed runs left in a folder: nothing in them has changed for a day."""
    for path in folder.glob(pattern):
        with suppress(OSError):
            changed = max(each.stat().st_mtime for each in (path, *path.glob("*")))
            if time.time() - changed > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def put(new: Path, path: Path) -> None:
    """Replace a file with one that was made `beside` it, and keep its permissions, and its owner and group as far as
    allowed. Raises OSError, also if `path` is no regular file: root could replace a device.
    """
    path = Path(os.path.realpath(path))
    require_file(path)
    if path.exists():
        about = path.stat()
        for owner, group in ((-1, about.st_gid), (about.st_uid, -1)):
            with suppress(OSError, AttributeError):  # AttributeError: on Windows
                os.chown(new, owner, group)
        shutil.copymode(path, new)  # last, because a change of owner clears bits
    try:
        new.replace(path)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        shutil.copyfile(new, path)  # a file that is mounted by itself, as into a container


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can read, or make an existing one so, if possible."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def try_out(path: Path) -> None:
    """Raise OSError if a file can't be written, before the work whose result goes there. Changes nothing."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if is_device(path):
        return
    new = beside(path)
    try:
        new.write_bytes(bytes(_BLOCK))  # an empty file can be created even on a full disk
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raise SpecdecError if a folder can't be written to, before the work whose result goes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_out(folder / "any")
    except OSError as error:
        raise cannot_write(folder, error, "write to") from None
