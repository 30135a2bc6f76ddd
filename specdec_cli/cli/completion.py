"""What the shell offers when names of pairs, models and other things that are listed somewhere are typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def pairs(incomplete: str) -> list[tuple[str, str]]:
    """Profiles that begin so, with what they are. Completion never fails: it offers nothing then."""
    try:
        from specdec_cli.models import profiles
        from specdec_cli.store import pulled_pairs as pulled

        here = set(pulled.names())
        return [
            (name, ("(here) " if name in here else "") + _what(name))
            for name in profiles.names()
            if name.startswith(incomplete)
        ]
    except Exception:
        return []


def _what(name: str) -> str:
    """A pair in a few words: what is longer than a line would be taken for several offers."""
    from rich.markup import escape

    from specdec_cli.models import profiles

    try:
        text = " ".join(profiles.load(name).description.split())
    except Exception:
        return ""
    return escape(text if len(text) <= 50 else f"{text[:49]}…")


def pulled_pairs(incomplete: str) -> list[str]:
    """Pairs on this machine that begin so."""

    def known() -> list[str]:
        from specdec_cli.store import pulled_pairs as pulled

        return pulled.names()

    return _of(known, incomplete)


def models(incomplete: str) -> list[str]:
    """Profiles, models in the Hub's cache, and GGUF files that begin so."""

    def known() -> list[str]:
        from specdec_cli.hub import cache
        from specdec_cli.models import profiles

        return [*profiles.names(), *cache.references(), *_files(incomplete, (".gguf",))]

    return _of(known, incomplete)


def prompts(incomplete: str) -> list[str]:
    """Suites, and files that may hold prompts."""

    def known() -> list[str]:
        from specdec_cli.models import suites

        return [*suites.builtin(), *_files(incomplete, (".txt", ".jsonl", ".json", ".yaml", ".yml"))]

    return _of(known, incomplete)


def rules(incomplete: str) -> list[str]:
    """Acceptance rules."""

    def known() -> Iterable[str]:
        from specdec_cli.decoding.rules import RULES

        return RULES

    return _of(known, incomplete)


def drafters(incomplete: str) -> list[str]:
    """Drafters, none of them combined."""

    def known() -> list[str]:
        from specdec_cli.drafters import names

        return names()

    return _of(known, incomplete)


def machines(incomplete: str) -> list[str]:
    """Machines whose costs are known."""

    def known() -> list[str]:
        from specdec_cli.models import hardware

        return hardware.names()

    return _of(known, incomplete)


def results(incomplete: str) -> list[str]:
    """Kept results of compare."""

    def known() -> list[str]:
        from specdec_cli.store import comparisons as results

        return [name for name, _ in results.kept()]

    return _of(known, incomplete)


def _of(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    """Those that begin so; none if it cannot be found out, be it for an import that fails."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except Exception:
        return []


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Folders and files of some kinds, as they would be typed on."""
    from pathlib import Path

    path = Path(incomplete)
    folder = path if incomplete.endswith("/") else path.parent
    typed = incomplete[: incomplete.rfind("/") + 1]
    return sorted(
        f"{typed}{entry.name}/" if entry.is_dir() else f"{typed}{entry.name}"
        for entry in folder.glob("*")
        if entry.is_dir() or entry.suffix in suffixes
    )
