"""Conversations that are kept by name, for `chat --resume`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from specdec_cli.decoding.errors import UsageError
from specdec_cli.models.user_files import suggest
from specdec_cli.store.json_store import JsonStore


@dataclass(frozen=True, slots=True)
class _KeptMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class KeptConversation:
    messages: tuple[_KeptMessage, ...]


_CONVERSATIONS = JsonStore(
    lambda: platformdirs.user_data_path("specdec", appauthor=False) / "conversations",
    KeptConversation,
    "Fix the file, or remove it.",
    remade=False,
)


def save(name: str, messages: Sequence[Mapping[str, str]]) -> Path:
    """Keep a conversation, in place of an older one of that name. Raises UsageError on a name that is none, SpecdecError
    if it cannot be written.
    """
    kept = tuple(_KeptMessage(message["role"], message["content"]) for message in messages)  # type: ignore[arg-type]
    return _CONVERSATIONS.save(_checked(name), KeptConversation(kept))


def load(name: str) -> list[dict[str, str]]:
    """A conversation's messages. Raises UsageError if there is none of that name, SpecdecError if it is damaged."""
    if (kept := _CONVERSATIONS.load(_checked(name))) is None:
        hint = suggest(name, _CONVERSATIONS.names(), "Kept conversations")
        raise UsageError(f"there is no kept conversation {name!r}", hint)
    return [{"role": message.role, "content": message.content} for message in kept.messages]


def _checked(name: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be a conversation's name", "Use letters, digits, '.', '_' and '-'.")
    return name
