"""`specdec rm`: deletes a pulled pair from the disk."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli.output import print_json
from specdec_cli.decoding.errors import UsageError


def rm(
    name: Annotated[str, typer.Argument(help="A pulled pair.", autocompletion=completion.pulled_pairs)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; needs --yes.")] = False,
) -> None:
    """Files that another pulled pair uses are kept."""
    from specdec_cli.pairs import pulled_pairs
    from specdec_cli.user_files import format_bytes

    pair = pulled_pairs.require(name)
    size, used = pulled_pairs.removable(pair)
    kept = ", ".join(used)
    if not yes and (json_ or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError(f"rm can't ask here whether to delete {name}", "Add --yes.")
    stays = f" (kept for another pair: {kept})" if kept else ""
    if not yes and not typer.confirm(f"Delete {name}, {format_bytes(size)}{stays}?", err=True):
        raise typer.Exit(1)
    freed = pulled_pairs.remove(pair)
    if json_:
        print_json({"name": name, "freed": freed, "kept": used})
        return
    print(f"{name} was deleted: {format_bytes(freed)} freed." + (f" Kept for another pair: {kept}." if kept else ""))
