"""The event stream as JSON lines: `--trace FILE` writes them, `replay` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.types import Done, Event, Prefill, Step
from specdec_cli.json_store import FORMAT
from specdec_cli.user_files import beside, is_device, parse_json, put

INCOMPLETE = "the recording is incomplete: the run was cut off before its end"

_EVENTS: dict[str, type[Event]] = {"prefill": Prefill, "step": Step, "done": Done}
_OPTIONAL = {"parents": None, "path": None, "distance": None, "unread": 0, "free": 0}
"""Fields that are left out if they have these values, as for most drafts, which are chains."""
_MAX = dict.fromkeys(("at", "seconds", "draft_s", "verify_s", "sample_s"), 1e9) | {"p": 1.001, "q": 1.001}
"""Exclusive upper limits of numbers; for others it is 2**53."""
_LONGEST_LINE = 1 << 24
_RECORD = "Record a run with: specdec run --trace FILE"


class TraceFile:
    """Writes one line of settings, then one line per event. An existing recording is replaced only when the new one is
    complete. problem: what failed; the answer continues. Raises OSError if the file can't be created.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.problem: OSError | None = None
        self._path = path
        self._new = beside(path) if path.is_file() and not is_device(path) else None
        self._out = (self._new or path).open("w", encoding="utf-8")
        self._complete = False
        self._write({"event": "run", "format": FORMAT, **settings})

    def show(self, event: Event) -> None:
        self._complete = isinstance(event, Done)
        self._write(event_json(event))

    def close(self) -> None:
        new, self._new = self._new, None
        try:
            self._out.close()
            if new and self._complete and not self.problem:
                put(new, self._path)
        except OSError as error:
            self.problem = self.problem or error
        finally:
            if new:
                with suppress(OSError):
                    new.unlink(missing_ok=True)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._out.write(json.dumps(line) + "\n")
        except OSError as error:
            self.problem = self.problem or error


def event_json(event: Event) -> dict[str, Any]:
    """An event as a trace stores it."""
    fields = msgspec.to_builtins(event)
    for token in fields.get("tokens", ()) if isinstance(event, Step) else ():
        if token["logprobs"] is None:
            del token["logprobs"]
    given = {name: value for name, value in fields.items() if name not in _OPTIONAL or value != _OPTIONAL[name]}
    return {"event": type(event).__name__.lower(), **given}


def read_trace(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """The settings and the events of a recorded run; the last event is a Done.

    A recording that was cut short (a killed run, a full disk) is read up to its last complete line; its Done then says
    `interrupted`, with INCOMPLETE among the notes. Raises SpecdecError for anything else that isn't a trace.
    """
    try:
        with path.open("rb") as file:
            lines = _objects(file, path)
            settings = next(lines, None)
            if settings is None:
                raise SpecdecError(f"{path} is empty: the run may have been killed before it wrote anything", _RECORD)
            if settings.pop("event", None) != "run":
                raise _bad(path, 1, "does not start a recorded run")
            if (version := settings.pop("format", None)) != FORMAT:
                what = f"{path} has format {version!r:.20}; this version of specdec reads format {FORMAT}"
                raise SpecdecError(what, "Use the version that recorded it, or record the run again.")
            events = [_event(line, path, number) for number, line in enumerate(lines, 2)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", _RECORD) from None
    if not events or not isinstance(events[-1], Done):
        events.append(Done("interrupted", "", (INCOMPLETE,), events[-1].at if events else 0.0))
    for number, event in enumerate(events[:-1], 2):
        if isinstance(event, Done):
            raise _bad(path, number, "ends the run, but more events follow")
    return settings, events


def prompt_of(settings: dict[str, Any]) -> str | None:
    """The prompt as the user wrote it; None in older recordings, which don't have it."""
    prompt = settings.get("prompt")
    return prompt if isinstance(prompt, str) else None


def _objects(file: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    """The object on each line. Only a last line without a line break may be broken: it was cut off there."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
        try:
            data = parse_json(line)
        except (ValueError, RecursionError):
            if number > 1 and not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                return
            raise _bad(path, number, "is not JSON") from None
        if not isinstance(data, dict):
            raise _bad(path, number, "is not a JSON object")
        yield data


def _event(line: dict[str, Any], path: Path, number: int) -> Event:
    """The event on a line. Unknown fields are ignored, so that traces can get new ones."""
    name = line.get("event")
    if not isinstance(name, str) or name not in _EVENTS:
        raise _bad(path, number, f"has an unknown event, {name!r:.40}")
    try:
        event = msgspec.convert(line, _EVENTS[name])
        _check("", msgspec.to_builtins(event))
        if isinstance(event, Step):
            _require_tree(event)
    except ValueError as error:
        raise _bad(path, number, f"is a damaged {name}: {error}") from None
    return event


def _check(name: str, value: Any) -> None:
    """Raise ValueError for a number or a text that no run writes."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check(key, part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check(name, part)
    elif isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError(f"half a surrogate pair in {name!r}")
    elif value is not None and not -(name == "parents") <= value < _MAX.get(name, 2**53):
        raise ValueError(f"{name!r} = {value!r:.40}")


def _require_tree(step: Step) -> None:
    """Raise ValueError if what a step says about its draft is inconsistent. A chain has no parents and no path."""
    if step.accepted > min(len(step.drafted), len(step.tokens)):
        raise ValueError(f"more tokens accepted than drafted or shown: {step.accepted}")
    if step.parents is step.path is None:
        return
    parents, path = dict(enumerate(step.parents or ())), step.path or ()
    fits = None not in (step.parents, step.path) and (len(parents), len(path)) == (len(step.drafted), step.accepted)
    fits = fits and all(parent < node for node, parent in parents.items())
    if not fits or [parents.get(node) for node in path] != [-1, *path][:-1]:
        raise ValueError("the draft is not a tree")


def _bad(path: Path, number: int, what: str) -> SpecdecError:
    return SpecdecError(f"{path} cannot be replayed: line {number} {what}", _RECORD)
