"""Turns an exception into a line that says what happened, one that says what to do, and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.display.terminal import SafeConsole, can_paint, close

if TYPE_CHECKING:
    from specdec_cli.llama.interrupt import Interrupt


_WrongUse: Any = typer.BadParameter.__base__
"""What Typer raises for a command line that it can't parse. It exports only this subclass."""


@contextmanager
def reporting() -> Iterator[None]:
    """Turn every known exception into a message and an exit code. SPECDEC_DEBUG=1 shows tracebacks, too."""
    code = 0
    try:
        yield
        return
    except _WrongUse as error:
        if what := error.format_message():  # otherwise Typer has already printed the help
            code, command = 2, error.ctx.command_path if error.ctx else "specdec"
            complain(UsageError(what[0].lower() + what[1:].rstrip("."), f"See {command} -h."))
    except SpecdecError as error:
        if os.environ.get("SPECDEC_DEBUG"):
            traceback.print_exc()
        complain(error)
        code = error.exit_code
    except (KeyboardInterrupt, Interrupted, typer.Abort) as error:  # Abort: Ctrl-C at a question
        complain(SpecdecError(f"interrupted{error}"))
        code = error.exit_code if isinstance(error, Interrupted) else 130
    except BrokenPipeError:
        close(sys.stdout)
    except OSError as error:  # that no command expected: a full disk, a closed terminal
        if os.environ.get("SPECDEC_DEBUG"):
            traceback.print_exc()
        where = error.filename or ("a temporary file" if isinstance(error, FileNotFoundError) else "the output")
        is_full = error.errno == errno.ENOSPC or not error.filename  # no name: an open file could not be written
        fix = "Free some space, or write elsewhere." if is_full else "Check its path and permissions."
        complain(SpecdecError(f"can't use {where}: {error.strerror}", fix))
        close(sys.stdout)
        close(sys.stderr)
        code = 1
    sys.exit(code)


@contextmanager
def interruptible(what_is_left: str = "") -> Iterator[Interrupt]:
    """Let Ctrl-C and SIGTERM end the block, with a message."""
    from specdec_cli.llama.interrupt import Interrupt

    with Interrupt() as interrupt:
        try:
            yield interrupt
        except Interrupted:
            complain(SpecdecError(f"interrupted{what_is_left}"))
            raise typer.Exit(interrupt.exit_code) from None


def complain(error: SpecdecError) -> None:
    """Print what went wrong and what to do. Never raises, even if stderr is closed.

    On a terminal the first line wraps between words. The second may hold a command to copy, so it stays whole.
    """
    what, fix = (text.replace("\n", " ") for text in (str(error), error.hint))
    with suppress(OSError):
        if can_paint(sys.stderr):
            SafeConsole(stderr=True).print(f"specdec: {what}")
        else:
            print(f"specdec: {what}", file=sys.stderr)
        if fix:
            print(f"  {fix}", file=sys.stderr)
        sys.stderr.flush()
