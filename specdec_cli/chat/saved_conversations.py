"""Saved conversations, with the models' KV caches."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.contexts import ModelContext
from specdec_cli.engine.conversation import Conversation, ReadText
from specdec_cli.json_store import JsonStore
from specdec_cli.user_files import data_dir, make_private, remove_abandoned, require_name, suggest
from specdec_cli.weights import model_loading


@dataclass(frozen=True, slots=True)
class SavedMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """text, tokens, marks: what the models had read of it, checked by `checksum`; see engine/conversation.py. caches:
    by role, the model file and the build of llama.cpp that wrote the cache. checksums: by role, that of its file.
    n_dropped: how many messages the last prompt left out.
    """

    messages: tuple[SavedMessage, ...]
    text: str = ""
    tokens: tuple[int, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    checksum: int | None = None
    caches: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    n_dropped: int = 0

    @property
    def is_whole(self) -> bool:
        return self.checksum == _checksum(ReadText(self.text, self.tokens, self.marks))


CONVERSATIONS = JsonStore(
    lambda: data_dir() / "conversations",
    SavedConversation,
    "Fix the file, or remove it.",
    remade=False,
)


def save(conversation: Conversation, name: str) -> list[str]:
    """Save a conversation, and replace an older one of that name. Returns notes on caches that can't be saved. Raises
    UsageError on an invalid name, SpecdecError if the messages can't be written.
    """
    require_name(name, "a conversation")
    read = conversation.read
    make_private(data_dir())
    remove_abandoned(CONVERSATIONS.folder(), "specdec-*.tmp")
    caches, checksums, notes = {}, {}, []
    for model in conversation.session.models.all:
        if not (kv := model.kv):
            continue
        kv.settle()
        if not kv.rewinds and (length := kv.cache.reachable(kv.length, kv.common(read.tokens))):
            kv.rewind(length)  # once loaded, a recurrent state can't drop rejected drafts
        if kv.tokens:
            try:
                checksums[model.role] = kv.save(cache_path(name, model.role))
                caches[model.role] = _identity(model)
            except SpecdecError as error:
                notes.append(f"the {model.role} will read the conversation again: {error}")
    messages = tuple(SavedMessage(**message) for message in conversation.messages)  # type: ignore[arg-type]
    of_read = (read.text, read.tokens, read.marks, _checksum(read))
    CONVERSATIONS.save(name, SavedConversation(messages, *of_read, caches, checksums, conversation.n_dropped))
    return notes


def restore(conversation: Conversation, name: str) -> list[str]:
    """Continue a saved conversation. Returns notes on what the models have to read again. Raises UsageError if there is
    none of that name, SpecdecError if it is damaged.
    """
    kept, session = read(name), conversation.session
    target_changed = kept.caches.get("target", "") != _identity(session.models.target)
    conversation.messages = [{"role": message.role, "content": message.content} for message in kept.messages]
    begun = kept.n_dropped + (conversation.system is not None)
    conversation.oldest = next(iter(conversation.messages[begun:]), None) if kept.n_dropped else None
    conversation.regains, conversation.read = True, ReadText()
    if not kept.is_whole:
        return ["the models read the conversation again: its file has changed, or an older version of specdec wrote it"]
    if kept.tokens and target_changed:  # whose tokenizer may be another
        return ["the models read the conversation again: no cache of this target, adapters and llama.cpp is saved"]
    try:
        session.open(len(kept.tokens))
    except SpecdecError as error:
        return [f"the models read the conversation again: {error}"]
    conversation.read = ReadText(kept.text, kept.tokens, kept.marks)
    notes = []
    for model in session.models.all:
        if model.role not in kept.caches or not model.kv:
            continue
        if kept.caches[model.role] != _identity(model):
            notes.append(f"the {model.role} reads the conversation again: its file, adapters or llama.cpp changed")
        elif not model.kv.load(cache_path(name, model.role), kept.checksums.get(model.role, "")):
            notes.append(f"the {model.role} reads the conversation again: its saved cache is gone or damaged")
    return notes


def read(name: str) -> SavedConversation:
    """Raises UsageError if there is none of that name, SpecdecError if it is damaged."""
    require_name(name, "a conversation")
    if (kept := CONVERSATIONS.load(name)) is None:
        fix = suggest(name, CONVERSATIONS.names(), "Saved conversations")
        raise UsageError(f"there is no saved conversation {name!r}", fix)
    return kept


def cache_path(name: str, role: str) -> Path:
    """Where the cache of a model is saved."""
    return CONVERSATIONS.folder() / f"{name}.{role.replace(' ', '-')}.state"


def _checksum(read: ReadText) -> int:
    return zlib.crc32(json.dumps([read.text, read.tokens, read.marks]).encode())


def _identity(model: ModelContext) -> str:
    """The model's file, its adapters with their scales, and the build."""
    with suppress(OSError):
        return model_loading.name_of(model.path, model.loaded.adapters)
    raise SpecdecError(f"{model.path.name} is gone", "Put it back.")
