"""Records kept between runs: a folder for each kind, a JSON file for each record, validated on load."""

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
from specdec_cli.user_files import cannot_write, parse_json, read_bytes, require_file, write_whole

FORMAT = 1
Record = TypeVar("Record")
Points = dict[Annotated[int, msgspec.Meta(ge=1)], Annotated[float, msgspec.Meta(gt=0, lt=1e6)]]
"""Tokens in a forward pass -> seconds."""
_MAX_STEM_BYTES = 100  # of a model's name: file systems allow 255 in a file name


@dataclass(frozen=True, slots=True)
class JsonStore(Generic[Record]):
    """Records of the dataclass `schema`, in the files NAME.json of a folder. A field `name` is the file's stem.

    folder: called on each use, because it depends on the environment. fix: the hint for a damaged record. remade:
    whether specdec recreates damaged records; their files are renamed then.
    """

    folder: Callable[[], Path]
    schema: type[Record]
    fix: str
    remade: bool = True

    def path(self, name: str) -> Path:
        return self.folder() / f"{name}.json"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder().glob("*.json"))

    def load(self, name: str) -> Record | None:
        """A record; None if it doesn't exist. Raises SpecdecError if it can't be read or is damaged."""
        path = self.path(name)
        try:
            data = from_json(parse_json(read_bytes(path)), dict[str, Any])
            if data.get("format") != FORMAT:
                raise ValueError(f"unknown format {data.get('format')!r:.20}")
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
        """Write a record, replacing an older one. Returns its path; raises SpecdecError if it can't be written."""
        path, data = self.path(name), to_json(record)
        data.pop("name", None)
        try:
            require_file(path)
        except OSError as error:
            raise cannot_write(path, error) from None
        write_whole(path, json.dumps({"format": FORMAT, **data}, indent=1))
        return path


def record_name(stems: Sequence[str], identity: str, digits: int = 8) -> str:
    """A file name for a record about some models: their names, shortened, and a digest of `identity`."""
    cut = [stem.encode("utf-8", "surrogateescape")[:_MAX_STEM_BYTES].decode(errors="ignore") for stem in stems]
    return f"{'+'.join(cut)}-{digest(identity, digits)}"


def digest(text: str, digits: int) -> str:
    """The first hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


def from_json(data: Any, schema: type[Record]) -> Record:
    """JSON data as a dataclass. Raises ValueError that names the invalid field. Unknown keys are ignored."""
    return msgspec.convert(data, schema, str_keys=True, dec_hook=_to_curve)


def to_json(record: Any) -> Any:
    return msgspec.to_builtins(record, str_keys=True, enc_hook=_from_curve)


def _from_curve(value: Any) -> Any:
    if isinstance(value, Curve):
        return value.points
    raise NotImplementedError


def _to_curve(kind: type, data: Any) -> Any:
    if kind is not Curve:
        raise NotImplementedError
    points = msgspec.convert(data, Points, str_keys=True)
    if 1 not in points:
        raise ValueError("the cost curve has no pass of one token")
    return Curve(points)
