"""From an exception to one line that says what, one that says what to do, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from specdec_cli.cli.short_options import refuse_glued
from specdec_cli.decoding.errors import Interrupted, SpecdecError

if TYPE_CHECKING:
    from specdec_cli.llama.interrupt import Interrupt


class ErrorReporting(TyperGroup):
    """The command group: every known error ends here. SPECDEC_DEBUG=1 shows tracebacks instead."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # as below
        """The command and its arguments, with no short option that has letters glued to it."""
        name, command, rest = super().resolve_command(ctx, args)
        refuse_glued(command, rest)
        return name, command, rest

    def invoke(self, ctx):  # type: ignore[no-untyped-def]  # Typer's vendored Click has no public Context type
        """Run a command, and turn what it raises into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except SpecdecError as error:
            if os.environ.get("SPECDEC_DEBUG"):
                raise
            complain(error)
            ctx.exit(error.exit_code)
        except (KeyboardInterrupt, Interrupted, typer.Abort):  # the last: at a question
            print("specdec: interrupted", file=sys.stderr)
            ctx.exit(130)
        except BrokenPipeError:
            close_stdout()
        except OSError as error:  # what no command foresaw: a full disk, a vanished terminal
            if os.environ.get("SPECDEC_DEBUG"):
                raise
            where = f" {error.filename}" if error.filename else " the output"
            complain(SpecdecError(f"cannot use{where}: {error.strerror}", "Free some space, or write elsewhere."))
            close_stdout()
            ctx.exit(1)


@contextmanager
def interruptible(what_is_left: str = "") -> Iterator[Interrupt]:
    """Let Ctrl-C and SIGTERM end what is in the block, and say so."""
    from specdec_cli.llama.interrupt import Interrupt

    with Interrupt() as interrupt:
        try:
            yield interrupt
        except Interrupted:
            print(f"specdec: interrupted{what_is_left}", file=sys.stderr)
            raise typer.Exit(interrupt.exit_code) from None


def complain(error: SpecdecError) -> None:
    """Print what went wrong and what to do. Never raises, even if stderr is closed."""
    from specdec_cli.display.theme import safe

    # A message may quote a model file, which may hold anything.
    what, to_do = (safe(text.replace("\n", " ")) for text in (str(error), error.hint))
    lines = [f"specdec: {what}", *([f"  {to_do}"] if to_do else [])]
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def close_stdout() -> None:
    """The reader of our output has gone: what is still buffered must not complain when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
