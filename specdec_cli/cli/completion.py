"""What the shell offers when names of pairs and models are typed."""

from __future__ import annotations


def pairs(incomplete: str) -> list[tuple[str, str]]:
    """Profiles that begin so, with what they are. Completion never fails: it offers nothing then."""
    try:
        from specdec_cli.models import pairs as pulled
        from specdec_cli.models import profiles

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
    try:
        from specdec_cli.models import pairs as pulled

        return [name for name in pulled.names() if name.startswith(incomplete)]
    except Exception:
        return []


def models(incomplete: str) -> list[str]:
    """Profiles, models in the Hub's cache, and GGUF files that begin so."""
    try:
        from pathlib import Path

        from specdec_cli.models import profiles
        from specdec_cli.models.hub import cache

        path = Path(incomplete)
        folder = path if incomplete.endswith("/") else path.parent
        typed = incomplete[: incomplete.rfind("/") + 1]
        files = [
            f"{typed}{entry.name}/" if entry.is_dir() else f"{typed}{entry.name}"
            for entry in folder.glob("*")
            if entry.is_dir() or entry.suffix == ".gguf"
        ]
        known = [*profiles.names(), *cache.references()]
        return [name for name in (*known, *sorted(files)) if name.startswith(incomplete)]
    except Exception:
        return []
