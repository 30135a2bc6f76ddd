"""`specdec pull`: a pair proved to fit from two headers, then downloaded, checked again, and recorded."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion
from specdec_cli.display.status_line import status_line

if TYPE_CHECKING:
    from specdec_cli.engine.pair_download import Puller


def pull(
    name: Annotated[
        str | None, typer.Argument(help="A profile; specdec ls lists them.", autocompletion=completion.pairs)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-m",
            help="Target: REPO:QUANT, REPO/FILE.gguf, or a file here.",
            autocompletion=completion.models,
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-md",
            help="Draft, named likewise. Without one, drafts are proposed.",
            autocompletion=completion.models,
        ),
    ] = None,
    as_: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Name for a pair given by models.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare and plan; download nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; take the first draft proposed.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; do not ask.")] = False,
) -> None:
    """Download a pair, after its tokenizers were compared from the headers: one that does not fit costs no weights.

    A pull that was cut short goes on where it stopped. Weights go to the Hugging Face cache (HF_HOME); HF_TOKEN,
    HF_ENDPOINT and HF_HUB_OFFLINE are heeded.
    """
    from specdec_cli.engine.pair_download import Puller, Wanted

    asks = not (yes or json_ or dry_run) and sys.stdin.isatty() and sys.stderr.isatty()
    puller = Puller(Wanted.of(name, target, draft, as_), silent=json_)
    if not dry_run and (pair := puller.recorded()):
        _finish(puller.result(pair, None), json_)
        return
    with status_line("reading headers", json_):
        puller.read_target()
    if not puller.wanted.complete and not _choose(puller, asks, yes, json_):
        return
    with status_line("reading headers", json_):
        puller.compare()
    plan = puller.plan()
    if not json_:
        _show(plan)
    if dry_run:
        print(json.dumps(plan) if json_ else "Nothing was downloaded: --dry-run.", flush=True)
        return
    if asks and plan["to_download"] and not typer.confirm("Download?", default=True, err=True):
        print("Nothing was downloaded.", file=sys.stderr)
        raise typer.Exit(1)
    with _stoppable():
        pair = puller.download(plan)
    _finish(puller.result(pair, plan), json_)


def _choose(puller: Puller, asks: bool, yes: bool, as_json: bool) -> bool:
    """Settle on a draft; False if the proposals are all that can be given without asking."""
    from rich.console import Console

    from specdec_cli.display import pair_tables as pairs

    with status_line("reading the headers of possible drafts", as_json):
        proposals = puller.propose()
    if as_json and not yes:
        print(json.dumps({"proposals": proposals, "notes": puller.notes}), flush=True)
        return False
    if not as_json:
        Console(highlight=False).print(pairs.proposals_table(proposals))
        for note in pairs.notes(puller.notes):
            Console(stderr=True, highlight=False).print(note)
        puller.notes.clear()
    number = 1
    if asks:
        while not 1 <= (number := typer.prompt("Which draft?", default=1, type=int, err=True)) <= len(proposals):
            print(f"Give a number from 1 to {len(proposals)}.", file=sys.stderr)
    elif not yes:
        command = shlex.join(["specdec", "pull", "--target", puller.wanted.target, "--draft", proposals[0]["name"]])
        print(f"\nTo download the first of them:  {command}")
        return False
    puller.choose(proposals[number - 1]["name"])
    return True


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let a signal end a download as an interrupt does: the terminal restored, what has come kept."""

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        print("specdec: interrupted; what has come is kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, old)


def _show(plan: dict[str, Any]) -> None:
    from rich.console import Console

    from specdec_cli.display import pair_tables as pairs

    console = Console(stderr=True, highlight=False)
    for part in pairs.plan_tables(plan):
        console.print(part)


def _finish(result: dict[str, Any], as_json: bool) -> None:
    """Say what came of it and how to use it."""
    if as_json:
        print(json.dumps(result), flush=True)
        return
    name = result["name"] or "the pair"
    print(f"{name} was here already: nothing to download." if result["already"] else f"{name} is ready.")
    print(f'Run it:  {result["run"]} "..."')
