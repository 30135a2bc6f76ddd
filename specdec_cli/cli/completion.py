"""Shell completion for the names of pairs, models and so on. It never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Complete = Callable[[str], list[str]]


def _listed(module: str, list_names: Callable[..., Iterable[str]], suffixes: tuple[str, ...] = ()) -> Complete:
    """Completes the names that a module lists, and files with some suffixes. It imports the module when it's called."""

    def complete(incomplete: str) -> list[str]:
        try:
            names = [*list_names(import_module(f"specdec_cli.{module}")), *_files(incomplete, suffixes)]
            return [name for name in names if name.startswith(incomplete)]
        except Exception:  # a failed import, an unreadable folder
            return []

    return complete


def _models(profiles: Any) -> list[str]:
    from specdec_cli.pairs.hub import cache

    return [*profiles.names(), *cache.references()]


models = _listed("pairs.profiles", _models, (".gguf",))
pulled_pairs = _listed("pairs.pulled_pairs", lambda pulled: pulled.names())
prompts = _listed("measure.suites", lambda suites: suites.builtin(), (".txt", ".jsonl", ".json", ".yaml", ".yml"))
rules = _listed("decoding.rules", lambda rules: rules.RULES)
drafters = _listed("drafters", lambda drafters: ["auto", *drafters.names()])
machines = _listed("measure.hardware", lambda hardware: hardware.names())
serving_engines = _listed("measure.export", lambda export: export.ENGINES)
results = _listed("measure.saved_comparisons", lambda kept: [name for name, _ in kept.kept()])


def pairs(incomplete: str) -> list[tuple[str, str]]:
    """Profiles that begin like this, with their descriptions."""
    try:
        from specdec_cli.pairs import profiles
        from specdec_cli.pairs import pulled_pairs as pulled

        here = {name for name in pulled.names() if (pair := pulled.readable(name)) and pair.is_whole()}
        return [
            (name, ("(here) " if name in here else "") + _description(name))
            for name in profiles.names()
            if name.startswith(incomplete)
        ]
    except Exception:
        return []


def _description(name: str) -> str:
    """A pair in a few words: shells show a longer text as several completions."""
    from rich.markup import escape

    from specdec_cli.pairs import profiles

    try:
        text = " ".join(profiles.load(name).description.split())
    except Exception:
        return ""
    return escape(text if len(text) <= 50 else f"{text[:49]}…")


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Folders and files with some suffixes, as they would be completed."""
    from pathlib import Path

    if not suffixes:
        return []
    typed = incomplete[: incomplete.rfind("/") + 1]
    return sorted(
        f"{typed}{entry.name}{'/' * entry.is_dir()}"
        for entry in Path(typed).glob("*")
        if entry.is_dir() or entry.suffix in suffixes
    )
