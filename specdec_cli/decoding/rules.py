"""Acceptance rules by name."""

from __future__ import annotations

from specdec_cli.decoding.accept import match, rejection
from specdec_cli.decoding.types import AcceptRule
from specdec_cli.decoding.typical import typical

RULES: dict[str, AcceptRule] = {"match": match, "rejection": rejection, "typical": typical}

LOSSY = frozenset({"typical"})
"""Those that change the output's distribution; to be called lossy wherever they are named."""


def label(name: str) -> str:
    """A rule's name for people."""
    return f"{name} (lossy)" if name in LOSSY else name
