"""`specdec ls`, `show` and `rm`: the pairs there are, everything about one, and one taken off the disk."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt


def ls(
    here: Annotated[bool, typer.Option("--here", help="Only pairs on this machine.")] = False,
    json_: opt.Json = False,
) -> None:
    """List the pairs: which are on this machine, how large they are, how fast they were when last measured."""
    from specdec_cli.cli.output import print_json, print_parts
    from specdec_cli.display.pair_tables import list_table
    from specdec_cli.engine.pair_list import list_pairs

    result = list_pairs(here)
    if json_:
        print_json(result)
        return
    print_parts(list_table(result.pairs, result.notes))
    print_parts("\nDownload one:  specdec pull NAME     All about one:  specdec show NAME", style="dim")


def show(
    name: Annotated[str, typer.Argument(help="A profile.", autocompletion=completion.pairs)],
    json_: opt.Json = False,
) -> None:
    """Tell everything about one pair: why these two, sizes, licence, sampling, where its figures come from."""
    from specdec_cli.cli.output import print_json, print_parts
    from specdec_cli.display.pair_tables import details_table
    from specdec_cli.engine.pair_list import pair_details

    details = pair_details(name)
    if json_:
        print_json(details.profile, details.summary)
    else:
        print_parts(details_table(details))


def rm(
    name: Annotated[str, typer.Argument(help="A pair that was pulled.", autocompletion=completion.pulled_pairs)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; needs --yes.")] = False,
) -> None:
    """Remove a pulled pair from the disk, but for files that another pulled pair uses."""
    from specdec_cli.cli.output import print_json
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.display.theme import safe
    from specdec_cli.engine.pair_list import plan_removal
    from specdec_cli.results import format_bytes

    plan = plan_removal(name)
    kept = ", ".join(map(safe, plan.kept))
    if not yes and (json_ or not sys.stdin.isatty()):
        raise UsageError(f"{name} is not removed without being asked for", "Add --yes.")
    what = f"what an interrupted pull of {name} has begun" if plan.partial else name
    stays = f"; {kept} stays, for another pair uses it" if kept else ""
    if not yes and not typer.confirm(f"Remove {what}, {format_bytes(plan.size)}{stays}?", err=True):
        raise typer.Exit(1)
    freed = plan.run()
    if json_:
        print_json({"name": name, "freed": freed, "kept": plan.kept})
        return
    removed = f"What an interrupted pull of {name} had begun is removed" if plan.partial else f"{name} is removed"
    print(f"{removed}: {format_bytes(freed)} freed." + (f" Kept for another pair: {kept}." if kept else ""))
