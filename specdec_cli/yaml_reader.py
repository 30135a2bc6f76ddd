"""The part of YAML that settings, profiles and suites need: mappings, lists and plain values.

PyYAML parses, and this module turns its events into data. It rejects what would make a small file large or slow, such
as aliases, tags and deep nesting, and leaves merge keys, base-60 numbers and very long numbers as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

_MAX_EVENTS = 200_000
_MAX_DEPTH = 50
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None}
_WORDS |= {word: word in ("true", "yes", "on") for word in ("true", "yes", "on", "false", "no", "off")}
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
_FRACTION = r"([0-9]{1,300}\.[0-9]{0,300}|\.[0-9]{1,300})(e[-+]?[0-9]{1,3})?"
_NUMBER = re.compile(rf"[-+]?({_FRACTION}|[0-9]{{1,300}}e[-+]?[0-9]{{1,3}})", re.IGNORECASE)
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may lack its C extension


def parse(text: str) -> Any:
    """The data in a YAML text; None if it is empty. Raises ValueError, with a one-line message, if it is invalid."""
    try:
        events = _events(text)
        documents = [_value(event, events, 0) for event in events]
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if len(documents) > 1:
        raise ValueError("it has more than one document")
    return documents[0] if documents else None


def _events(text: str) -> Iterator[yaml.Event]:
    """The events that make up values: scalars, and the starts and ends of lists and mappings."""
    for count, event in enumerate(yaml.parse(text, Loader=_PARSER)):
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases (*name) are not supported", event)
        if isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None):
            raise _refused("tags (!name) are not supported", event)
        if count > _MAX_EVENTS:
            raise _refused("too many values", event)
        if isinstance(event, (yaml.NodeEvent, yaml.CollectionEndEvent)):
            yield event


def _value(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Any:
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth == _MAX_DEPTH:
        raise _refused("lists or mappings nested too deeply", event)
    parts = []
    for part in events:
        if isinstance(part, yaml.CollectionEndEvent):
            break
        parts.append(_value(part, events, depth + 1))
    if isinstance(event, yaml.SequenceStartEvent):
        return parts
    if any(isinstance(key, (list, dict)) for key in parts[::2]):
        raise _refused("a key is a list or a mapping", event)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
        raise _refused("an invalid character", event)
    if not event.implicit[0]:  # quoted, or a block scalar
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _refused(what: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)  # type: ignore[arg-type]
