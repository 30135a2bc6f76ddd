"""Prompt suites for measurements: bundled ones, the user's own, or any file of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specdec_cli import user_files
from specdec_cli.decoding.errors import UsageError
from specdec_cli.pairs.profiles import DEMO
from specdec_cli.user_files import bundled_dir, config_dir, decoded, named, suggest

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session
    from specdec_cli.settings.settings import Settings

_FIX = "Write the text as `prompt`; `id` and `category` are optional, and text in quotes."
_MIXTURE = ("code", "chat", "reasoning", "structured", "summarisation", "creative")
"""The suites that `tune` takes prompts from, if none is named."""
_MAX_BYTES, _MAX_LINES = 16 << 20, 100_000  # a larger file is a mistake, such as a model
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SuitePrompt:
    """One prompt; the id is unique in its suite."""

    id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class _Entry:
    prompt: str
    id: str | int | None = None
    category: str | None = None

    def __post_init__(self) -> None:
        for key, value in (("prompt", self.prompt), ("id", self.id), ("category", self.category)):
            if isinstance(value, str) and not value.strip():
                raise ValueError(f"the {key} is empty")
            if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(f"the {key} has half a surrogate pair: a lone \\ud... or a byte that isn't UTF-8")


def builtin() -> dict[str, str]:
    """The names and descriptions of the bundled suites."""
    files = named(bundled_dir() / "suites")
    return {name: str(user_files.read_mapping(path).get("description", "")) for name, path in files.items()}


def load(source: str) -> list[SuitePrompt]:
    """The prompts of a suite by name (the user's suites override bundled ones), or of a file.

    The file's suffix decides its format: .yaml and .yml are suites, .jsonl and .json have one object per line (with
    `prompt`, or in the format of Spec-Bench or HumanEval), anything else has one prompt per line. By default,
    a prompt's id is its number and its category the suite's name.

    Raises UsageError if the file is missing or malformed.
    """
    suites = named(config_dir() / "suites", bundled_dir() / "suites")
    path = suites.get(source) or Path(source)
    text = _read(path, source, suites)
    suffix = path.suffix.lower()
    unit = "prompt" if suffix in (".yaml", ".yml") else "line"
    numbers: dict[str, int] = {}
    prompts = []
    for number, entry in _entries(text, suffix, path.name):
        data = entry if isinstance(entry, dict) else {"prompt": entry}
        said = user_files.to_record(data, _Entry, f"{path.name}, {unit} {number}", _FIX)
        ident = str(number if said.id is None else said.id)
        if (first := numbers.setdefault(ident, number)) != number:
            what = f"{path.name}: {unit} {number} and {unit} {first} both have the id {ident!r}"
            raise UsageError(what, "Give each prompt its own id, or none.")
        prompts.append(SuitePrompt(ident, path.stem if said.category is None else said.category, said.prompt))
    if not prompts:
        raise UsageError(f"{path.name} has no prompts", "Write at least one.")
    categories = {prompt.category for prompt in prompts}
    if "all" in categories and len(categories) > 1:
        what = f"{path.name}: no category can be named 'all', which means all categories"
        raise UsageError(what, "Rename it. Prompts without a category get the file's name.")
    return prompts


def select(
    prompts: Sequence[SuitePrompt],
    categories: Sequence[str] = (),
    limit: int | None = None,
    per_category: int | None = None,
) -> list[SuitePrompt]:
    """The prompts of some categories (by default all), with a maximum for each and in all, in their order.

    The limit is shared evenly: first the first prompt of every category, then the second of each, and so on. Raises
    UsageError for a category without prompts or a number below 1.
    """
    for flag, most in (("--limit", limit), ("--per-category", per_category)):
        if most is not None and most < 1:
            raise UsageError(f"{flag} can't be {most}", "Give 1 or more, or leave it out.")
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    if unknown := [category for category in categories if category not in known]:
        raise UsageError(f"no prompt has the category {unknown[0]!r}", suggest(unknown[0], known, "Categories"))
    ranked: list[tuple[int, int]] = []  # (rank in its category, index)
    for category in set(categories or known):
        indices = [index for index, prompt in enumerate(prompts) if prompt.category == category]
        ranked += enumerate(indices[:per_category])
    return [prompts[index] for index in sorted(index for _, index in sorted(ranked)[:limit])]


def choose_prompts(
    target: str | Path,
    texts: Sequence[str] = (),
    suite: str | None = None,
    categories: Sequence[str] = (),
    limit: int | None = None,
    per_category: int | None = None,
) -> list[SuitePrompt]:
    """The prompts to compare on: texts or a suite; by default `code`, or `python` for the bundled pair."""
    if texts and suite:
        raise UsageError("there are prompts and a suite", "Give prompts or --prompts, not both.")
    fix = 'Give texts: specdec compare "def median(values):"'
    records = [user_files.to_record({"prompt": text}, _Entry, f"prompt {n}", fix) for n, text in enumerate(texts, 1)]
    prompts = [SuitePrompt(str(number), "given", each.prompt) for number, each in enumerate(records, 1)]
    prompts = prompts or load(suite or ("python" if _is_bundled(target) else "code"))
    return select(prompts, categories, limit, per_category)


def tuning_prompts(target: str | Path, suite: str | None) -> list[SuitePrompt]:
    """The prompts of a suite; by default a mixture, or `python` for the bundled pair."""
    if suite or _is_bundled(target):
        return load(suite or "python")
    return [replace(prompt, category=name) for name in _MIXTURE for prompt in load(name)[:4]]


def fitting(
    session: Session, settings: Settings, prompts: Iterable[SuitePrompt], most: int, system: str | None, raw: bool
) -> dict[SuitePrompt, list[int]]:
    """The prompts of at most `most` tokens, with their tokens."""
    about = system, raw, session.interrupt.is_set, settings.template_variables
    tokens = {prompt: session.weights.tokenize(prompt.text, *about).tokens for prompt in prompts}
    return {prompt: ids for prompt, ids in tokens.items() if len(ids) <= most}


def in_turn(prompts: Mapping[SuitePrompt, _Value]) -> list[tuple[SuitePrompt, _Value]]:
    """The first prompt of each category, then the second of each, and so on."""
    categories: dict[str, list[tuple[SuitePrompt, _Value]]] = {}
    for prompt, value in prompts.items():
        categories.setdefault(prompt.category, []).append((prompt, value))
    return [entry for entries in zip_longest(*categories.values()) for entry in entries if entry]


def _is_bundled(target: str | Path) -> bool:
    return Path(target).parent == bundled_dir() / DEMO


def _read(path: Path, source: str, suites: dict[str, Path]) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES or data.count(b"\n") > _MAX_LINES:
            what = f"{path.name} is over {_MAX_BYTES >> 20} MB or {_MAX_LINES:,} lines, too large for prompts"
            raise UsageError(what, "Use a part of it.")
        text = decoded(data, path.name, path)
    except FileNotFoundError:
        fix = suggest(source, suites, "Suites")
        raise UsageError(f"there is no prompt suite or file {source!r}", fix) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"can't read the prompts {source!r}: {reason}", "Check the path and permissions.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _entries(text: str, suffix: str, name: str) -> Iterator[tuple[int, Any]]:
    """The data of each prompt, with its number or its line number."""
    if suffix in (".yaml", ".yml"):
        yield from enumerate(_in_yaml(text, name), 1)
        return
    for number, line in enumerate(text.split("\n"), 1):  # not `splitlines`, which also splits within JSON texts
        if line.strip():
            yield number, _in_json(line, f"{name}, line {number}") if suffix in (".jsonl", ".json") else line


def _in_yaml(text: str, name: str) -> list[Any]:
    try:
        data = user_files.parse_yaml(text)
    except ValueError as error:
        raise UsageError(f"{name} is not YAML: {error}", "Fix the file.") from None
    if isinstance(data, dict):
        user_files.check_keys(data, ("prompts", "description"), Path(name))
        data = data.get("prompts")
    if not isinstance(data, (list, type(None))):
        raise UsageError(f"{name} has no list of prompts", "Write `prompts:` and below it a `- prompt: TEXT` for each.")
    return data or []


def _in_json(line: str, where: str) -> dict[str, Any]:
    """A prompt, also with the keys of Spec-Bench and HumanEval. Other keys, such as reference answers, are dropped."""
    fix = "Write one JSON object per line."
    try:
        data = user_files.parse_json(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}", fix) from None
    if not isinstance(data, dict):
        raise UsageError(f"{where} is not a JSON object", fix)
    task, turns = data.get("task_id"), data.get("turns")
    family = task.partition("/")[0].lower() if isinstance(task, str) and "/" in task else None
    return {
        "id": data.get("id", data.get("question_id", task)),
        "category": data.get("category", family or None),
        "prompt": data.get("prompt", turns[0] if isinstance(turns, list) and turns else None),
    }
