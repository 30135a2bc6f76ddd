"""The event stream as JSON lines: `--trace FILE` writes them, `replay` reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, get_args

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Done, Event, FinishReason, Origin, Prefill, Step, Token

FORMAT = 1
INCOMPLETE = "the recording is incomplete: the run was cut off before its end"

_LONGEST_LINE = 1 << 24
_LONGEST_TIME_S = 1e9
_RECORD = "Record a run with: specdec run --trace FILE"


class Trace:
    """Writes one line of settings, then one line an event.

    `problem` is what went wrong, if anything did: a full disk must not cost the answer.
    """

    def __init__(self, out: TextIO, settings: dict[str, Any]) -> None:
        self.problem: OSError | None = None
        self._out = out
        self._write({"event": "run", "format": FORMAT, **settings})

    def show(self, event: Event) -> None:
        """Write an event."""
        self._write(event.to_json())

    def close(self) -> None:
        """Write everything out."""
        try:
            self._out.close()
        except OSError as error:
            self.problem = self.problem or error

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._out.write(json.dumps(line) + "\n")
        except OSError as error:
            self.problem = self.problem or error


def read_trace(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """The settings and the events of a recorded run; the last event is a Done.

    A recording that was cut short (a killed run, a full disk) is read up to its last whole line, and its Done
    says `interrupted` with INCOMPLETE among the notes. Raises SpecdecError on anything else that is not a trace.
    """
    try:
        with path.open("rb") as file:
            lines = _objects(file, path)
            settings = _settings(next(lines, None), path)
            events = [_event(line, path, number) for number, line in lines]
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror}", _RECORD) from None
    if not events or not isinstance(events[-1], Done):
        events.append(Done("interrupted", "", (INCOMPLETE,), events[-1].at if events else 0.0))
    for number, event in enumerate(events[:-1], 2):
        if isinstance(event, Done):
            raise _bad(path, number, "is followed by more events, though it ends the run")
    return settings, events


def _objects(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line with its number. Only a last line without its line break may be broken: it was cut off there."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
        try:
            found = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            if number > 1 and not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                return
            raise _bad(path, number, "is not JSON") from None
        if not isinstance(found, dict):
            raise _bad(path, number, "is not a JSON object")
        yield number, found


def _settings(first: tuple[int, dict[str, Any]] | None, path: Path) -> dict[str, Any]:
    if first is None:
        raise SpecdecError(f"{path} is empty: the run was perhaps killed before anything was written", _RECORD)
    number, line = first
    if line.get("event") != "run":
        raise _bad(path, number, "does not begin a recorded run")
    if line.get("format") != FORMAT:
        what = f"{path} is recorded in format {line.get('format')!r:.20}; this specdec reads format {FORMAT}"
        raise SpecdecError(what, "Use the specdec that recorded it, or record the run anew.")
    return {name: value for name, value in line.items() if name not in ("event", "format")}


def _event(line: dict[str, Any], path: Path, number: int) -> Event:
    name = line.get("event")
    if not isinstance(name, str) or name not in _EVENTS:
        raise _bad(path, number, f"holds an unknown event, {name!r:.40}")
    kind, fields = _EVENTS[name]
    try:
        event: Event = kind(**_read(line, fields))
        if isinstance(event, Step) and event.accepted > min(len(event.drafted), len(event.tokens)):
            raise ValueError(f"more accepted than there is: {event.accepted}")
        if isinstance(event, Step) and not _is_tree(event):
            raise ValueError("a draft that is no tree")
    except ValueError as error:
        raise _bad(path, number, f"is a {name} with {error}") from None
    return event


def _is_tree(step: Step) -> bool:
    """Whether what a step says of its draft's shape fits together; a chain says nothing."""
    if step.parents is None or step.path is None:
        return step.parents is step.path
    if len(step.parents) != len(step.drafted) or len(step.path) != step.accepted:
        return False
    grows = all(parent < node for node, parent in enumerate(step.parents))
    above = (-1, *step.path[:-1])
    return grows and all(
        node < len(step.parents) and step.parents[node] == parent
        for node, parent in zip(step.path, above, strict=False)
    )


def _bad(path: Path, number: int, what: str) -> SpecdecError:
    return SpecdecError(f"{path} is no recording that can be replayed: line {number} {what}", _RECORD)


# --- the fields: each reader returns its value as the dataclass holds it, or raises ValueError --------------------

_Reader = Callable[[Any], Any]


def _read(line: Any, fields: dict[str, _Reader]) -> dict[str, Any]:
    """The fields of a dataclass from a JSON object; others are ignored, so that traces may grow."""
    if not isinstance(line, dict):
        raise ValueError("something that is no object")
    found = {}
    for name, reader in fields.items():
        try:
            found[name] = reader(line.get(name, _NEWER.get(name)))
        except ValueError as error:
            if name not in line:
                raise ValueError(f"no {name!r}") from None
            raise ValueError(str(error) or f"{name!r} = {line[name]!r:.40}") from None
    return found


def _no_number(constant: str) -> None:
    raise ValueError  # Python reads NaN and Infinity, which are not JSON


def _when(valid: Callable[[Any], bool]) -> _Reader:
    def reader(value: Any) -> Any:
        if isinstance(value, bool) or not valid(value):
            raise ValueError
        return value

    return reader


def _each(reader: _Reader) -> _Reader:
    def readers(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise ValueError
        return tuple(reader(value) for value in values)

    return readers


def _is_text(value: Any) -> bool:
    """Text that can be written: json.loads lets half a surrogate pair through."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


_text = _when(_is_text)
_count = _when(lambda value: isinstance(value, int) and 0 <= value < 2**53)
_place = _when(lambda value: isinstance(value, int) and -1 <= value < 2**53)
_seconds = _when(lambda value: isinstance(value, (int, float)) and 0 <= value < _LONGEST_TIME_S)
_chance = _when(lambda value: value is None or (isinstance(value, (int, float)) and 0 <= value < 1.001))


def _one_of(values: tuple[str, ...]) -> _Reader:
    return _when(lambda value: isinstance(value, str) and value in values)


_TOKEN: dict[str, _Reader] = {
    "id": _count,
    "text": _text,
    "origin": _one_of(get_args(Origin)),
    "p": _chance,
    "q": _chance,
}
_PREFILL: dict[str, _Reader] = {
    "model": _one_of(("target", "draft")),
    "tokens": _count,
    "seconds": _seconds,
    "at": _seconds,
}
_NEWER = {"why": ""}
"""Fields that older recordings lack, and what that means."""

_STEP: dict[str, _Reader] = {
    "index": _count,
    "tokens": _each(lambda token: Token(**_read(token, _TOKEN))),
    "drafted": _each(_count),
    "accepted": _count,
    "rejected_text": _each(_text),
    "source": _text,
    "draft_s": _seconds,
    "verify_s": _seconds,
    "sample_s": _seconds,
    "at": _seconds,
    "why": _text,
    "parents": lambda value: value if value is None else _each(_place)(value),
    "path": lambda value: value if value is None else _each(_count)(value),
    "distance": _when(lambda value: value is None or (isinstance(value, (int, float)) and 0 <= value < 2**53)),
}
_DONE: dict[str, _Reader] = {
    "reason": _one_of(get_args(FinishReason)),
    "tail": _text,
    "notes": _each(_text),
    "at": _seconds,
}
_EVENTS: dict[str, tuple[Callable[..., Event], dict[str, _Reader]]] = {
    "prefill": (Prefill, _PREFILL),
    "step": (Step, _STEP),
    "done": (Done, _DONE),
}
