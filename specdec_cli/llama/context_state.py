"""What a context has read, in a file: a long conversation goes on without being read again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama.context import LlamaContext


def save(context: LlamaContext, path: Path) -> None:
    """Write the text's cache, some kilobytes a token. Raises SpecdecError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    try:
        if not context.cells.save(new, context.tokens):
            raise SpecdecError(f"cannot write {path}", "Free some space.")
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def restore(context: LlamaContext, path: Path) -> bool:
    """Take a cache back that a context of the same model wrote. False, and an empty context, if it does not fit."""
    context.rewind(0)
    tokens = context.cells.load(path, context.n_ctx)
    if not tokens:
        context.cells.clear()
        return False
    context.length, context.tokens[:] = len(tokens), tokens
    return True
