"""Files of the user's and of specdec's own: where they are, how they are read, and how they are written whole."""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError

_Schema = TypeVar("_Schema")
_MOST_YAML = 64 << 10  # bytes of settings or of a profile; those that come with specdec have some 2,000
_MOST_DIGITS = 20  # of a whole number in JSON
_BLOCK = 4096  # bytes


def format_bytes(count: int) -> str:
    """Bytes for people, in decimal units as disks and the Hub count them."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count} B"


def config_dir() -> Path:
    """Where the user's own profiles and settings are."""
    return platformdirs.user_config_path("specdec")


def bundled_dir() -> Path:
    """Where the profiles that come with specdec are: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parent
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def named(*folders: Path) -> dict[str, Path]:
    """The YAML files in some folders by name, sorted; a file in an earlier folder overrides one in a later folder."""
    files = {path.stem: path for folder in reversed(folders) for path in folder.glob("*.yaml")}
    return dict(sorted(files.items()))


def read_bytes(path: Path, most: int = 64 << 20) -> bytes:
    """What a file holds. Raises OSError, also if it is no file, and ValueError if it has more than so many bytes."""
    if path.exists() and not path.is_file():  # a pipe would block, and a device has no end
        raise OSError(errno.EINVAL, "it is no file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError("it is too large")
    return data


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; raises ValueError, in one line, if it is not YAML."""
    from specdec_cli import yaml_reader

    return yaml_reader.parse(text)


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds; raises ValueError, in one line, if it is not JSON, such as the NaN that Python reads."""
    try:
        return json.loads(text, parse_int=_whole_number, parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{error.msg} at {place}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.20} is too large a number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping, or nothing; raises UsageError if it holds anything else."""
    try:
        data = parse_yaml(read_bytes(path, _MOST_YAML).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", "Fix or remove the file.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a mapping", "Write one `key: value` a line.")
    return data


def expanded(name: str) -> Path:
    """A path with ~ as the user's folder; pathlib raises on ~ of a user that there is not."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_file(path: Path) -> bool:
    """Whether there is such a file. pathlib raises on a name that is too long, and on a folder that is out of reach."""
    try:
        return path.is_file()
    except OSError:
        return False


def to_record(data: Mapping[Any, Any], schema: type[_Schema], where: str, fix: str, **known: Any) -> _Schema:
    """What a file says as the dataclass `schema`. known: fields that the file does not say. Raises UsageError."""
    import msgspec

    check_keys(data, [field.name for field in fields(schema) if field.name not in known], Path(where))  # type: ignore[arg-type]
    try:
        return msgspec.convert({**data, **known}, schema)
    except ValueError as error:
        what, _, place = str(error).replace("`", "").replace("Object missing", "missing").partition(" - at $.")
        raise UsageError(": ".join(filter(None, (where, place, what))), fix) from None


def check_keys(data: Iterable[Any], known: Iterable[str], path: Path) -> None:
    """Raise UsageError on the first unknown key, with the nearest known one."""
    for key in data:
        if key not in known:
            raise UsageError(f"{path.name} has the unknown key {key!r:.60}", suggest(str(key)[:60], known, "Keys"))


def suggest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for a misspelt word: the nearest known one, or all of them."""
    known = list(known)
    return nearest(word, known) or f"{what}: {', '.join(known)}."


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: the nearest known one; empty if none is near."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"Did you mean {close[0]!r}?" if close else ""


def write_whole(path: Path, *parts: str | bytes | memoryview) -> None:
    """Replace a file's content; whatever happens, it is the old or the new. Raises SpecdecError if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            for part in parts:
                file.write(part.encode("utf-8") if isinstance(part, str) else part)
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or fix the folder.") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of another when the block ends, and is removed if it fails. What is no file, such as
    a pipe, is written to directly. Raises OSError.
    """
    if is_device(path):
        with path.open("wb") as file:
            yield file
        return
    new = beside(path)
    try:
        with new.open("xb") as file:
            yield file
        put(new, path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def is_device(path: Path) -> bool:
    """Whether a path is there and is no file, or only the name of one that is open, as /dev/stdout."""
    return path.exists() and (not path.is_file() or path.parent == Path("/dev") or path.parent.name == "fd")


def beside(path: Path) -> Path:
    """A name that no file has, in the folder of the file that a path leads to. Raises OSError if that is protected."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return Path(os.path.realpath(path)).with_name(f"specdec-{secrets.token_hex(8)}.tmp")


def put(new: Path, path: Path) -> None:
    """Let a file that was made `beside` another take its place and its permissions. Raises OSError."""
    path = Path(os.path.realpath(path))
    if path.exists():
        shutil.copymode(path, new)
    new.replace(path)


def try_out(path: Path) -> None:
    """Raise OSError now if a file could not be written after some work. Changes nothing."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if is_device(path):
        return
    new = beside(path)
    try:
        new.write_bytes(bytes(_BLOCK))  # on a full disk, an empty file can be made
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raise SpecdecError now rather than after the work whose result is to be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_out(folder / "any")
    except OSError as error:
        raise SpecdecError(f"cannot write to {folder}: {error.strerror}", "Fix the folder, or free space.") from None
