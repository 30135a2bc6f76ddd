"""`specdec batch`: answers many requests from a file, in the slots of one pair."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import complain
from specdec_cli.cli.output import print_parts
from specdec_cli.cli.signals import cancelled_by_signals
from specdec_cli.cli.slots import DEFAULTS, OPTIONS, QUEUE, open_slots
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.wording import counted
from specdec_cli.display.terminal import status_line
from specdec_cli.user_files import is_file


@opt.takes(*OPTIONS, **DEFAULTS)
def batch(
    given: opt.Given,
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File for the answers.")],
    parallel: Annotated[int, typer.Option("--parallel", "-np", min=1, max=64, help="Answers generated at once.")] = 4,
) -> None:
    """If you run it again, it continues where it stopped.

    Each line of the file is {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [...]}}, and each
    answer is a line with the same custom_id. -c is the context of each answer.
    """
    import asyncio

    from specdec_cli.display.parts import rough_duration
    from specdec_cli.server.batch_run import BatchRun

    if is_file(source) and is_file(output) and source.samefile(output):
        raise UsageError("the answers would overwrite the requests", "Give -o another file.")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", "Create it first.")
    with status_line("reading the requests", silent=False):
        work = BatchRun(source, output)
    seconds = 0.0
    if work.done < work.total:
        with open_slots(given, parallel, QUEUE * parallel) as answering:
            started = monotonic()
            with status_line("answering", silent=False) as say:

                def report() -> None:
                    done, left = work.done - work.done_before, work.total - work.done
                    rest = f", {rough_duration((monotonic() - started) / done * left)} left" if done and left else ""
                    say(f"{work.done:,} of {work.total:,} answers{rest}")

                ended_by = asyncio.run(cancelled_by_signals(work.run(answering, parallel, report)))
            seconds = monotonic() - started
        if ended_by:
            complain(SpecdecError("interrupted", "Run the same command again to continue."))
            raise typer.Exit(128 + ended_by)
    for number, why in work.bad:
        print_parts(f"line {number} is not a request: {why}", stderr=True)
    answers = f"{counted(work.done, 'answer')} in {output}"
    failed = f" ({counted(work.failed, 'error')})" if work.failed else ""
    speed = f"; {work.written / seconds:,.1f} tokens/s" if work.written else ""
    print_parts(f"{answers}{failed}{speed}", stderr=True, uncut=True)
    raise typer.Exit(1 if work.bad or work.failed else 0)
