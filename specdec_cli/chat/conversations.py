"""Conversations that are kept by name, and beside them what the models' caches held of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import platformdirs

from specdec_cli.decoding.errors import UsageError
from specdec_cli.json_store import JsonStore
from specdec_cli.user_files import suggest


@dataclass(frozen=True, slots=True)
class KeptMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class KeptConversation:
    """text, tokens, marks: what had been read of it (see chat/conversation.py). caches: by role, of which model file
    and build of llama.cpp the file of its cache is.
    """

    messages: tuple[KeptMessage, ...]
    text: str = ""
    tokens: tuple[int, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    caches: dict[str, str] = field(default_factory=dict)


CONVERSATIONS = JsonStore(
    lambda: platformdirs.user_data_path("specdec", appauthor=False) / "conversations",
    KeptConversation,
    "Fix the file, or remove it.",
    remade=False,
)


def cache_path(name: str, role: str) -> Path:
    """Where the cache of a model is kept."""
    return CONVERSATIONS.folder() / f"{name}.{role.replace(' ', '-')}.state"


def load(name: str) -> KeptConversation:
    """Raises UsageError if there is none of that name, SpecdecError if it is damaged."""
    if (kept := CONVERSATIONS.load(checked(name))) is None:
        hint = suggest(name, CONVERSATIONS.names(), "Kept conversations")
        raise UsageError(f"there is no kept conversation {name!r}", hint)
    return kept


def checked(name: str) -> str:
    """A name for a conversation; raises UsageError if it is none."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be a conversation's name", "Use letters, digits, '.', '_' and '-'.")
    return name
