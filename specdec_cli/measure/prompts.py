"""The prompts that are measured on: given, or of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import UsageError
from specdec_cli.measure import suites
from specdec_cli.pairs import profiles
from specdec_cli.user_files import bundled_dir

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session


_MIXTURE = ("code", "chat", "reasoning", "structured", "summarisation", "creative")


def choose_prompts(
    target: str | Path,
    texts: Sequence[str] = (),
    suite: str | None = None,
    categories: Sequence[str] = (),
    limit: int | None = None,
    per_category: int | None = None,
) -> list[suites.Prompt]:
    """The prompts to compare on: texts, else those of a suite; by default code, or Python for the bundled pair."""
    if texts and suite:
        raise UsageError("prompts were given and a suite too", "Give prompts, or --prompts.")
    if not all(text.strip() for text in texts):
        raise UsageError("a prompt is empty", 'Give texts: specdec compare "def median(values):"')
    prompts = [suites.Prompt(str(number), "given", text) for number, text in enumerate(texts, 1)]
    prompts = prompts or suites.load(suite or ("python" if _is_bundled(target) else "code"))
    return suites.select(prompts, categories, limit, per_category)


def tuning_prompts(target: str | Path, suite: str | None) -> list[suites.Prompt]:
    """The prompts of a suite; by default a mixture, or Python for the bundled pair."""
    if suite or _is_bundled(target):
        return suites.load(suite or "python")
    return [replace(prompt, category=name) for name in _MIXTURE for prompt in suites.load(name)[:4]]


def fitting(
    session: Session, prompts: Iterable[suites.Prompt], most: int, system: str | None, raw: bool
) -> dict[suites.Prompt, list[int]]:
    tokens = {prompt: session.tokenize(prompt.text, system=system, raw=raw) for prompt in prompts}
    return {prompt: ids for prompt, ids in tokens.items() if len(ids) <= most}


def _is_bundled(target: str | Path) -> bool:
    return Path(target).parent == bundled_dir() / profiles.DEMO
