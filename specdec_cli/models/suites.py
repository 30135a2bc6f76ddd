"""Prompt suites: what a measurement runs over. Built in, the user's own, or any file of prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specdec_cli.decoding.errors import UsageError
from specdec_cli.models import profiles

_MOST_BYTES = 64 << 20  # more is a mistake, such as a model's file


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; the id is unique in its suite."""

    id: str
    category: str
    text: str


def builtin() -> dict[str, str]:
    """The suites that come with specdec: their names and descriptions."""
    found = _suites_in(profiles.bundled_dir())
    return {name: str(profiles.read_mapping(path).get("description", "")) for name, path in found.items()}


def load(source: str) -> list[Prompt]:
    """The prompts of a suite by name (the user's own override those built in), or of a file.

    The file's suffix says how it is read: .yaml and .yml as suites, .jsonl and .json as one object a line (with
    `prompt`, or as Spec-Bench or HumanEval have it), anything else as one prompt a line. A file called like a suite
    is meant by `./name`. A prompt without an id takes its number, one without a category the suite's name.

    Raises UsageError if there is no such suite or file, if it is malformed, or if it holds no prompts.
    """
    path = _named().get(source) or Path(source)
    text = _read(path, source)
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        unit, entries = "prompt", _from_yaml(text, path)
    elif suffix in (".jsonl", ".json"):
        unit, entries = "line", _from_jsonl(text, path)
    else:
        unit, entries = "line", _lines(text)
    prompts: list[Prompt] = []
    numbers: dict[str, int] = {}
    for number, entry in entries:
        prompt = _prompt(entry, number, path, f"{path.name}, {unit} {number}")
        if prompt.id in numbers:
            raise UsageError(
                f"{path.name}: {unit} {number} has the id {prompt.id!r}, as has {unit} {numbers[prompt.id]}",
                "Give each prompt an id of its own; one without takes its number.",
            )
        numbers[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f"{path.name} holds no prompts", "Write at least one.")
    return prompts


def select(
    prompts: Sequence[Prompt],
    categories: Sequence[str] = (),
    limit: int | None = None,
    per_category: int | None = None,
) -> list[Prompt]:
    """The prompts of some categories (none: of all), at most so many of each and in all, in their order.

    The limit is shared out evenly: first the first prompt of every category, then the second of each, and so on.

    Raises UsageError on a category that no prompt has, and on a number below 1.
    """
    for flag, most in (("--limit", limit), ("--per-category", per_category)):
        if most is not None and most < 1:
            raise UsageError(f"{flag} is {most}", "Give 1 or more, or leave it out.")
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    for unknown in (category for category in categories if category not in known):
        raise UsageError(f"no prompt has the category {unknown!r}", profiles.suggest(unknown, known, "Categories"))
    seen: Counter[str] = Counter()
    ranked = []  # (rank in its category, index)
    for index, prompt in enumerate(prompts):
        if not categories or prompt.category in categories:
            ranked.append((seen[prompt.category], index))
            seen[prompt.category] += 1
    if per_category is not None:
        ranked = [(rank, index) for rank, index in ranked if rank < per_category]
    chosen = sorted(ranked)[:limit]
    return [prompts[index] for index in sorted(index for _, index in chosen)]


def _named() -> dict[str, Path]:
    return _suites_in(profiles.bundled_dir()) | _suites_in(profiles.config_dir())


def _suites_in(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((folder / "suites").glob("*.yaml"))}


def _read(path: Path, source: str) -> str:
    """The file's text, its line ends made line feeds."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        hint = profiles.suggest(source, sorted(_named()), "Suites")
        raise UsageError(f"there is no prompt suite or file {source!r}", hint) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the prompts {source!r}: {reason}", "Check the path and permissions.") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path.name} is over {_MOST_BYTES >> 20} MB, too large for prompts", "Give a text file.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path.name} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start:,}",
            f"Convert it first: iconv -t UTF-8 {path}",
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1; not `splitlines`, which also splits within JSON texts."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _from_jsonl(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    hint = "Write one JSON object a line."
    for number, line in _lines(text):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise UsageError(f"{path.name}, line {number} is not JSON: {reason}", hint) from None
        if not isinstance(entry, dict):
            raise UsageError(f"{path.name}, line {number} is not a JSON object", hint)
        yield number, _from_benchmark(entry)


def _from_benchmark(entry: dict[str, Any]) -> dict[str, Any]:
    """The keys of Spec-Bench and HumanEval read as ours; further keys, such as reference answers, are dropped."""
    task, turns = entry.get("task_id"), entry.get("turns")
    family = task.partition("/")[0].lower() if isinstance(task, str) and "/" in task else None
    return {
        "id": entry.get("id", entry.get("question_id", task)),
        "category": entry.get("category", family or None),
        "prompt": entry.get("prompt", turns[0] if isinstance(turns, list) and turns else None),
    }


def _from_yaml(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    try:
        data = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # PyYAML raises them all
        reason = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            reason = f"{error.problem} at line {error.problem_mark.line + 1}"
        raise UsageError(f"{path.name} is not YAML: {reason}", "Mend the file.") from None
    if isinstance(data, dict):
        profiles.check_keys(data, ("description", "prompts"), path)
        data = data.get("prompts")
    if not isinstance(data, (list, type(None))):
        raise UsageError(f"{path.name} has no list of prompts", "Write `prompts:` and under it `- prompt: TEXT` each.")
    for number, entry in enumerate(data or [], 1):
        if isinstance(entry, dict):
            profiles.check_keys(entry, ("id", "category", "prompt"), path)
        yield number, entry


def _prompt(entry: Any, number: int, path: Path, where: str) -> Prompt:
    """A prompt from a mapping, or from its text alone; raises UsageError if anything in it has the wrong type."""
    if not isinstance(entry, dict):
        entry = {"prompt": entry}
    ident, category, text = (entry.get(key) for key in ("id", "category", "prompt"))
    if text is None:
        raise UsageError(f"{where} has no prompt", "Give it one, under the key `prompt`.")
    if ident is None or type(ident) is int:
        ident = str(number if ident is None else ident)
    values = {"id": ident, "category": path.stem if category is None else category, "prompt": text}
    for key, value in values.items():
        if not isinstance(value, str):
            kind = type(value).__name__
            raise UsageError(f"the {key} of {where} is not a text but of type {kind}", "Write it as text, in quotes.")
        if not value.strip():
            raise UsageError(f"the {key} of {where} is empty", "Fill it in, or remove it.")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"the {key} of {where} holds half a surrogate pair", "Remove the lone \\ud... escape.")
    return Prompt(*values.values())
