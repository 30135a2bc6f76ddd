"""What a session says of itself under a run: its settings in one line, and the memory it takes."""

from __future__ import annotations

from dataclasses import asdict

from specdec_cli.decoding.metrics import ModelMemory
from specdec_cli.engine.session import Session
from specdec_cli.engine.settings_line import headline
from specdec_cli.llama import repacking
from specdec_cli.models import memory


def describe(session: Session) -> str:
    """The settings of a run in one line."""
    settings, pair = session.settings, session.pair
    files = {"target": pair.target_path, "draft": pair.draft_path, "draft_small": pair.small_path}
    corpus = [f"a corpus of {len(session.corpus):,} tokens"] if session.corpus else []
    return headline(
        {**asdict(settings), **files}, [*corpus, _threads(session.threads[0]), f"context {session.n_ctx:,}"]
    )


def memory_of(session: Session) -> list[ModelMemory]:
    """What the models take with the contexts that were opened."""
    types = repacking.repacked_types()
    found = []
    for role, _, header, context in session.opened():
        needs = memory.footprint(header, context.n_ctx, types, context.max_rows)
        found.append(ModelMemory(role, needs.weights, needs.repacked, needs.cache, needs.buffers + needs.vocabulary))
    return found


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"
