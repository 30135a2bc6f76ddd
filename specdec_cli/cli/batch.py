"""`specdec batch`: answers many requests from a file, in the slots of one pair."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import complain
from specdec_cli.cli.output import print_parts
from specdec_cli.cli.serve import open_slots
from specdec_cli.cli.signals import cancelled_by_signals
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import status_line

if TYPE_CHECKING:
    from specdec_cli.server.batch_run import BatchProgress


@opt.takes(*opt.ALL)
def batch(
    given: opt.Given,
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File for the answers.")],
    parallel: Annotated[int, typer.Option("--parallel", "-np", min=1, max=64, help="Answers at a time.")] = 4,
) -> None:
    """Answer a file of requests, several at a time.

    If you run it again, it continues where it stopped.

    Each line of the file is {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [...]}}, and each
    answer is a line with the same custom_id. -c is the context of each answer.
    """
    import asyncio

    from specdec_cli.server.batch_run import BatchRun

    if source.exists() and output.exists() and source.samefile(output):
        raise UsageError("the answers would overwrite the requests", "Give -o another file.")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", "Create it first.")
    with status_line("reading the requests", silent=False):
        work = BatchRun(source, output)
    with open_slots(given, parallel, most_waiting=16 * parallel) as (answering, names):
        started = monotonic()
        with status_line("answering", silent=False) as say:

            def report(progress: BatchProgress) -> None:
                say(_line(progress, monotonic() - started))

            ended_by = asyncio.run(cancelled_by_signals(work.run(answering, names[0], parallel, report)))
    if ended_by:
        complain(SpecdecError("interrupted", "Run the same command again to continue."))
        raise typer.Exit(128 + ended_by)
    progress, seconds = work.progress, monotonic() - started
    for number, why in progress.bad:
        print_parts(f"line {number} is not a request: {why}", stderr=True)
    failed = f", {progress.failed} of them are errors" if progress.failed else ""
    speed = f"; {progress.written / seconds:,.1f} tokens/s" if progress.written else ""
    print_parts(f"{progress.done:,} answers in {output}{failed}{speed}", stderr=True, pipe_width=200)
    raise typer.Exit(1 if work.progress.bad or work.progress.failed else 0)


def _line(progress: BatchProgress, seconds: float) -> str:
    """The progress, and how long the rest will take at this speed."""
    from specdec_cli.display.parts import duration

    done, left = progress.done - progress.done_before, progress.total - progress.done
    rest = f", {duration(seconds / done * left)} left" if done and left else ""
    return f"{progress.done:,} of {progress.total:,} answers{rest}"
