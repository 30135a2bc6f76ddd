"""Loads a pair for a command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import UsageError
from specdec_cli.display.terminal import status_line

if TYPE_CHECKING:
    from specdec_cli.engine.engine import Engine
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.settings.settings import Settings
    from specdec_cli.weights.model_pair import ModelPair


@contextmanager
def loaded(
    settings: Settings, pair: ModelPair, interrupt: Interrupt, silent: bool = False, variants: Sequence[Settings] = ()
) -> Iterator[Engine]:
    """An engine, which is closed at the end. A status line shows that it loads. variants: as in `Engine`."""
    from specdec_cli.engine.engine import Engine

    names = " + ".join(path.name for path in (pair.target_path, pair.draft_path) if path)
    with ExitStack() as stack:
        with status_line(f"loading {names}", silent) as say:
            engine = stack.enter_context(Engine(settings, interrupt, variants=variants, pair=pair))
            engine.weights.read_corpus(interrupt, say)
        yield engine


def require_template(pair: ModelPair, so: str, fix: str) -> None:
    """Raise UsageError if the target has no chat template. so: what that means for the command."""
    from specdec_cli.gguf.chat_template import template_of

    if template_of(pair.target) is None:
        raise UsageError(f"{pair.target_path.name} has no chat template: {so}", fix)


def context_of(settings: Settings, pair: ModelPair, usual: int) -> int:
    """Tokens of context: -c, or the usual ones, or fewer if the target was trained on fewer."""
    trained = pair.target.setting("context_length")
    return settings.ctx or min(usual, trained if isinstance(trained, int) and trained else usual)
