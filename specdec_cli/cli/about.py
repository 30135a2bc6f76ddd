"""What a session says of itself under a run: its settings in one line, and the memory it takes."""

from __future__ import annotations

from specdec_cli import drafters
from specdec_cli.cli import terms
from specdec_cli.cli.pair import Pair
from specdec_cli.cli.session import Session
from specdec_cli.decoding import rules
from specdec_cli.display.tables import Memory
from specdec_cli.models import memory


def describe(session: Session) -> str:
    """The settings of a run in one line."""
    settings, pair = session.settings, session.pair
    if settings.drafter == "none":
        parts = [pair.target_path.name, "alone"]
    else:
        names = [_file_of(name, pair) for name in drafters.split(settings.drafter)]
        parts = [" + ".join([pair.target_path.name, *names]), f"k={settings.draft_tokens}"]
        parts += [f"draft-min-p={settings.draft_min_p:g}"] if settings.draft_min_p else []
        parts += [f"tree={settings.tree}"] if settings.tree > 1 else []
        parts += [f"lookahead={settings.lookahead}"] if terms.lookahead_size(settings) else []
        parts += [f"a corpus of {len(session.corpus):,} tokens"] if session.corpus else []
    parts.append(f"temp={settings.temp:g}" if settings.temp else "greedy")
    if settings.temp and settings.drafter != "none":
        parts.append(f"accept={rules.label(settings.accept)}")
    return ", ".join([*parts, _threads(session.threads[0]), f"context {session.n_ctx:,}"])


def memory_of(session: Session) -> list[Memory]:
    """What the models take: weights, and the cache at the context that was opened."""
    return [
        Memory(role, model.size_bytes, memory.cache_bytes(header, context.n_ctx))
        for role, model, header, context in session.opened()
    ]


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _file_of(drafter: str, pair: Pair) -> str:
    """A drafter by its model's file, where that says more."""
    outer, speeds_up, inner = drafter.partition("<")
    outer = pair.draft_path.name if pair.draft_path and outer in ("model", "self") else outer
    return outer + speeds_up + (pair.small_path.name if pair.small_path and inner == "small" else inner)
