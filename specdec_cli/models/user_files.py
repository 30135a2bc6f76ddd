"""Files of the user's and of specdec's own: where they are, how they are read, and how they are written whole."""

from __future__ import annotations

import difflib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError

_Schema = TypeVar("_Schema")
_MOST_YAML = 64 << 10  # bytes of settings or of a profile; those that come with specdec have some 2,000
_MOST_DIGITS = 20  # of a whole number in JSON


def config_dir() -> Path:
    """Where the user's own profiles and settings are."""
    return platformdirs.user_config_path("specdec")


def bundled_dir() -> Path:
    """Where the profiles that come with specdec are: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def named(*folders: Path) -> dict[str, Path]:
    """The YAML files in some folders by name, sorted; a file in an earlier folder overrides one in a later folder."""
    files = {path.stem: path for folder in reversed(folders) for path in folder.glob("*.yaml")}
    return dict(sorted(files.items()))


def read_bytes(path: Path, most: int) -> bytes:
    """What a file holds. Raises OSError, or ValueError if it is no file or has more than so many bytes."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, and a device has no end
        raise ValueError("it is a folder or a device")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; raises ValueError, in one line, if it is not YAML."""
    from specdec_cli.models import yaml_reader

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
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            new = Path(file.name)
            try:
                for part in parts:
                    file.write(part.encode("utf-8") if isinstance(part, str) else part)
                file.close()
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or fix the folder.") from None


def require_writable(folder: Path) -> None:
    """Raise SpecdecError now rather than after the work whose result is to be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SpecdecError(f"cannot write to {folder}: {error.strerror}", "Fix the folder, or free space.") from None
