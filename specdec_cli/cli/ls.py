"""`specdec ls`: the known model pairs, those on this machine first."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json, print_parts


def ls(
    here: Annotated[bool, typer.Option("--here", help="Only pairs on this machine.")] = False,
    json_: opt.Json = False,
) -> None:
    from specdec_cli.display.pair_tables import list_table
    from specdec_cli.pairs.pair_list import list_pairs

    result = list_pairs(here)
    if json_:
        print_json(result)
        return
    print_parts(list_table(result.pairs, result.notes), uncut=True)
    print_parts("\nDownload a pair:  specdec pull NAME\nShow details:     specdec show NAME", style="dim")
