"""`specdec ls`: the pairs there are."""

from __future__ import annotations

from typing import Annotated

import typer


def ls(
    here: Annotated[bool, typer.Option("--here", help="Only pairs on this machine.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the pairs: which are on this machine, how large they are, how fast they were when last measured."""
    from rich.console import Console

    from specdec_cli.cli.json_output import print_json
    from specdec_cli.display.pair_tables import list_table
    from specdec_cli.engine.pair_list import list_pairs

    result = list_pairs(here)
    if json_:
        print_json(result)
        return
    console = Console(highlight=False)
    console.print(list_table(result.pairs, result.notes))
    console.print("\nDownload one:  specdec pull NAME     All about one:  specdec show NAME", style="dim")
