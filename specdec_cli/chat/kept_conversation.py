"""Keeping a conversation with what both models have read of it, and going on with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specdec_cli.chat import conversations
from specdec_cli.chat.conversation import Conversation, ReadText
from specdec_cli.chat.conversations import CONVERSATIONS, KeptConversation, KeptMessage
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine import trial_records
from specdec_cli.engine.contexts import ModelContext
from specdec_cli.llama import context_state, kernels
from specdec_cli.llama.adapter import identity


def save(conversation: Conversation, name: str) -> Path:
    """Keep a conversation, in place of an older one of that name. Returns its file; raises UsageError on a name that is
    none, SpecdecError if it cannot be written.
    """
    name, read = conversations.checked(name), conversation.read
    caches = {}
    for loaded in conversation.session.models.all:
        if loaded.context and loaded.context.tokens:
            context_state.save(loaded.context, conversations.cache_path(name, loaded.role))
            caches[loaded.role] = _identity(loaded)
    messages = tuple(KeptMessage(**message) for message in conversation.messages)  # type: ignore[arg-type]
    return CONVERSATIONS.save(name, KeptConversation(messages, read.text, read.tokens, read.marks, caches))


def load(conversation: Conversation, name: str) -> list[str]:
    """Go on with a conversation that was kept. Returns notes on what has to be read again; raises UsageError if there
    is none of that name, SpecdecError if it is damaged.
    """
    kept, session = conversations.load(name), conversation.session
    conversation.messages = [{"role": message.role, "content": message.content} for message in kept.messages]
    conversation.read = ReadText(kept.text, kept.tokens, kept.marks)
    session.open(len(kept.tokens))
    notes = []
    for loaded in session.models.all:
        path = conversations.cache_path(name, loaded.role)
        if loaded.role not in kept.caches or not loaded.context:
            continue
        if kept.caches[loaded.role] != _identity(loaded):
            notes.append(f"what the {loaded.role} had read is of another file, adapter or build: it is read again")
        elif not (path.is_file() and context_state.restore(loaded.context, path)):
            notes.append(f"what the {loaded.role} had read does not fit: it is read again")
    return notes


def _identity(loaded: ModelContext) -> str:
    """Of the model's file, the adapters that act in it with their scales, and the build."""
    with suppress(OSError):
        return trial_records.name_of(loaded.path, kernels.build(), identity(loaded.loaded.adapters))
    raise SpecdecError(f"{loaded.path.name} is gone", "Put it back.")
