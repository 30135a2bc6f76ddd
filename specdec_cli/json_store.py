"""Records kept between runs: those of one kind in one folder, each in a JSON file that is checked when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from specdec_cli.decoding.costs import Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.user_files import parse_json, read_bytes, write_whole

FORMAT = 1
Record = TypeVar("Record")
Points = dict[Annotated[int, msgspec.Meta(ge=1)], Annotated[float, msgspec.Meta(gt=0, lt=1e6)]]
"""Tokens in a pass -> seconds."""
_LONGEST_STEM = 100  # bytes of a model's name: file systems take 255 in all


@dataclass(frozen=True, slots=True)
class JsonStore(Generic[Record]):
    """Records of the dataclass `schema`, in the files NAME.json of a folder. A field `name` is the file's name.

    folder: called at each use, because it depends on the environment. fix: what to do about a damaged record. remade:
    whether a damaged record will be made again; its file is renamed then. formats: those that can be read; None
    stands for files that don't name one.
    """

    folder: Callable[[], Path]
    schema: type[Record]
    fix: str
    remade: bool = True
    formats: tuple[int | None, ...] = (FORMAT,)

    def path(self, name: str) -> Path:
        return self.folder() / f"{name}.json"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder().glob("*.json"))

    def load(self, name: str) -> Record | None:
        """A record; None if there is none. Raises SpecdecError if it cannot be read, or is damaged."""
        path = self.path(name)
        try:
            data = from_json(parse_json(read_bytes(path)), dict[str, Any])
            if data.get("format") not in self.formats:
                raise ValueError(f"its format is {data.get('format')!r:.20}")
            return from_json({**data, "name": name}, self.schema)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            what = f"cannot read {path}: {' '.join(str(error).split())}"
            if self.remade and not isinstance(error, OSError):
                with suppress(OSError):
                    path.replace(path.with_name(f"{path.name}.damaged"))
                    what += "; it was renamed to *.damaged"
            raise SpecdecError(what, self.fix.format(name=name)) from None

    def save(self, name: str, record: Record) -> Path:
        """Keep a record in place of an older one. Returns the file; raises SpecdecError if it cannot be written."""
        path, data = self.path(name), to_json(record)
        data.pop("name", None)
        write_whole(path, json.dumps({"format": FORMAT, **data}, indent=1))
        return path


def record_name(stems: Sequence[str], identity: str, digits: int = 8) -> str:
    """A file name for what concerns some models: their names, cut, and a digest of what tells them from others."""
    cut = [stem.encode("utf-8", "surrogateescape")[:_LONGEST_STEM].decode(errors="ignore") for stem in stems]
    return f"{'+'.join(cut)}-{digest(identity, digits)}"


def digest(text: str, digits: int) -> str:
    """The first hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def from_json(data: Any, schema: type[Record]) -> Record:
    """JSON data as a dataclass; raises ValueError, with the place, if it is anything else. Other keys are ignored."""
    return msgspec.convert(data, schema, str_keys=True, dec_hook=_to_curve)


def to_json(record: Any) -> Any:
    """A dataclass as JSON data, without its private fields."""
    return _public(msgspec.to_builtins(record, str_keys=True, enc_hook=_from_curve))


def _public(data: Any) -> Any:
    return {key: _public(value) for key, value in data.items() if key[0] != "_"} if isinstance(data, dict) else data


def _from_curve(value: Any) -> Any:
    if isinstance(value, Curve):
        return value.points
    raise NotImplementedError


def _to_curve(kind: type, data: Any) -> Any:
    if kind is not Curve:
        raise NotImplementedError
    points = msgspec.convert(data, Points, str_keys=True)
    if 1 not in points:
        raise ValueError("a cost curve without a pass of one token")
    return Curve(points)
